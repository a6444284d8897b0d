"""Observations between tests: classes them by the SKU's policies, records them, and finds the nodes to leave."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from muster import store
from muster.errors import BadSettings
from muster.judging import policies
from muster.model.health import Observation, Report
from muster.model.states import SERVING
from muster.rules.service import health as rules
from muster.settings import settings
from muster_criteria.device_events.policy import (
    GRAVITY,
    DeviceEvent,
    EventPolicy,
    EventSeverity,
    policy_of,
    response_to,
)
from muster_criteria.health.readings import UNCLASSED, Reading, driver_error
from muster_criteria.text import one_line

if TYPE_CHECKING:
    from muster_criteria.sku_files.skus import Sku

log = logging.getLogger(__name__)


def sku_of(name: str) -> Sku | None:
    """Returns the SKU file by name; None for one that cannot be used, which is logged."""
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import current_sku

    try:
        return current_sku(name, settings().sku_folders)
    except SkuError as error:
        log.warning("%s", error)
        return None


def classed(seen: Reading, for_events: Sequence[EventPolicy]) -> Reading:
    """Returns a reading on one line, a driver's error ("xid/79") with the severity that the SKU's policy gives it.

    An error that no policy of the SKU judges gets the severity ``UNCLASSED``, which counts as grave.
    """
    seen = dataclasses.replace(seen, value=one_line(seen.value), part=one_line(seen.part))
    if (error := driver_error(seen.check)) is None:
        return seen
    kind, code = error
    if (policy := policy_of(for_events, kind)) is None:
        return dataclasses.replace(seen, severity=UNCLASSED)
    event = DeviceEvent(kind, seen.device, "", seen.value, code)
    return dataclasses.replace(seen, severity=str(response_to(event, policy).severity))


def folded(seen: Iterable[Reading]) -> list[Reading]:
    """Returns classed readings, with several of one check and part merged into the gravest: a storm is one row.

    Readings of a state that turned good or bad again are not merged, so states stay in their order.
    """
    found: list[Reading] = []
    last: dict[tuple[str, str, str], int] = {}
    for each in seen:
        if each.check.endswith("/"):
            last.clear()  # it ends states of other checks
        key = each.check, each.device, each.part
        at = last.get(key)
        if at is None or (found[at].bad, found[at].rate) != (each.bad, each.rate):
            last[key] = len(found)
            found.append(each)
        else:
            gravest = min(found[at], each, key=_gravity)
            found[at] = dataclasses.replace(gravest, count=found[at].count + each.count)
    return found


def _gravity(seen: Reading) -> int:
    """0 is the gravest."""
    return GRAVITY[EventSeverity(seen.severity)] if seen.severity else len(GRAVITY)


def record(reports: Sequence[Report], skus: Mapping[str, str]) -> list[Observation]:
    """Class and record reports; returns observations that are new or whose action is graver. ``skus``: {node: its SKU}.

    Raises UnknownNode, BadSettings.
    """
    ready = []
    known = {name: sku_of(name) for name in {skus.get(report.node, "") for report in reports}}
    for report in reports:
        sku = known[skus.get(report.node, "")]
        own = sku.event_policies if sku else ()
        ready.append(dataclasses.replace(report, seen=tuple(folded(classed(each, own) for each in report.seen))))
    return store.health.record(ready, policies.health())


def leaving() -> dict[str, Observation]:
    """Returns {node in production: the observation for which it is to leave service}, for people to see.

    Without nodes in shadow mode, which stay. With a policy that cannot be used it is empty, and a warning is logged:
    the sweep acts on nothing then, and ``muster doctor`` names it.
    """
    now = store.clock.now()
    seen = store.health.open_in_service(now - rules.EVENTS_FOR)
    if not rules.due(seen, {each.node for each in seen}):
        return {}
    nodes = store.nodes.find(states=SERVING)
    try:
        shared = rules.common(seen, nodes, policies.health())
    except BadSettings as error:
        log.warning("%s", error)
        return {}
    return rules.due(rules.theirs(seen, shared), {node.name for node in nodes if not node.shadow})
