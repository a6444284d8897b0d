"""What is known now of the nodes that may be tested while they are idle, for choosing among them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from muster import records
from muster.admission import service
from muster.blackout import closed
from muster.lifecycle.selection import Limits
from muster.lifecycle.transitions import State
from muster.records import NodeRecord
from muster.settings import settings

SIGNS_FOR = datetime.timedelta(days=30)


def limits(now: datetime.datetime) -> Limits:
    """Returns the limits of the settings, as they are at ``now``."""
    current = settings()
    return Limits(
        share=current.revalidation_share,
        minutes=current.revalidation_minutes,
        after=datetime.timedelta(hours=current.revalidation_after_hours),
        whole_after=datetime.timedelta(days=current.revalidation_whole_days),
        node_kw=current.revalidation_node_kw,
        domain_kw=current.revalidation_domain_kw,
        closed=closed(current.revalidation_blackouts, now),
    )


def known(nodes: Sequence[NodeRecord], now: datetime.datetime) -> Mapping[str, Any]:
    """Returns what ``selection.choose`` and ``selection.forecast`` both take: nodes, their idleness, passes and signs,
    limits, and the circuit breaker. A node whose test a person requested in its scheduler counts as never tested.
    """
    requested = {place.node for place in records.scheduler_places() if place.verify}
    passes = {node: passed for node, passed in records.stage_passes().items() if node not in requested}
    breakers = {simulated: records.breaker(simulated=simulated).why for simulated in {node.simulated for node in nodes}}
    return {
        "nodes": nodes,
        "now": now,
        "idle": service.idle([node.name for node in nodes if node.state is State.PRODUCTION]),
        "passes": passes,
        "limits": limits(now),
        "signs": records.signs(now - SIGNS_FOR),
        "barred": lambda node: breakers[node.simulated],
    }
