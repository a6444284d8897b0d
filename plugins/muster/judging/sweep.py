"""Turns what the sweep read of a node into a report: states, events and counters, compared with the last sweep."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable

from muster import store
from muster.judging.health import sku_of
from muster.model.health import BMC, SWEEP, Cursor, Report
from muster.model.nodes import Node
from muster.model.schedulers import UsersJob
from muster_criteria.health import bmc, readings
from muster_criteria.health.policy import HealthAction
from muster_criteria.health.readings import Reading

UNREACHABLE, UNREADABLE = "unreachable", "unreadable_answer"


def report_of(
    node: Node,
    cursor: Cursor,
    raw: bytes,
    now: datetime.datetime,
    judged_until: datetime.datetime | None = None,
    jobs: Iterable[UsersJob] = (),
) -> Report:
    """Returns what an answer shows. One that is unreadable, or not as simulated as recorded, is itself a state.

    ``judged_until``: kernel messages until then were judged by a test; ``jobs``: users' jobs on the node since the last
    sweep.
    """
    try:
        swept = readings.parse(raw)
    except readings.BadAnswer as error:
        return unreadable(node, cursor, str(error))
    if swept.simulated is not node.simulated:
        kinds = ("simulated", "real") if swept.simulated else ("real", "simulated")
        return unreadable(node, cursor, f"it says that it is {kinds[0]}, and the records that it is {kinds[1]}")
    sku = sku_of(node.sku)
    seconds = (now - cursor.swept_at).total_seconds() if cursor.swept_at else None
    untested_for = max((now - judged_until).total_seconds(), 0.0) if judged_until else None
    since = max(seconds or 0.0, 0.0) or None
    under_job = under_a_job(jobs, cursor.swept_at, now) if cursor.swept_at else 0.0
    before = readings.Before(cursor.boot_id, cursor.kernel_s, cursor.counters, since, untested_for, under_job)
    gpus = sku.devices.get("gpu", 0) if sku else 0
    seen, counters = readings.read(
        swept, before, now.timestamp(), policies=sku.event_policies if sku else (),
        gpus=gpus if isinstance(gpus, int) else 0,
    )  # fmt: skip
    kernel_s = swept.kernel.last if swept.kernel else None
    if kernel_s is None:
        kernel_s = cursor.kernel_s if swept.boot_id == cursor.boot_id else 0.0
    answered = (Reading(UNREACHABLE, bad=False), Reading(UNREADABLE, bad=False))
    after = Cursor(node.name, swept.boot_id, kernel_s, counters, now)
    return Report(node.name, SWEEP, (*answered, *seen), swept.boot_id, uptime_s=swept.uptime_s, cursor=after)


def under_a_job(jobs: Iterable[UsersJob], since: datetime.datetime, until: datetime.datetime) -> float:
    """Returns for how many seconds of that time at least one of the jobs ran."""
    spans = sorted((max(each.since, since), min(each.until or until, until)) for each in jobs)
    total, reached = 0.0, since
    for begin, end in spans:
        total += max((end - max(begin, reached)).total_seconds(), 0.0)
        reached = max(reached, end)
    return total


def unreachable(node: Node, cursor: Cursor, why: str, *, down: bool) -> Report:
    """Returns the report that a node did not answer. One that its scheduler does not show as ``down`` stays in service,
    and is tested: Muster's own login may have failed, or somebody may have switched it off.
    """
    most = HealthAction.AT_ONCE if down else HealthAction.TEST_SOONER
    seen = (Reading(UNREACHABLE, value=why, bad=True),)
    return Report(node.name, SWEEP, seen, cursor.boot_id, most)


def unreadable(node: Node, cursor: Cursor, why: str) -> Report:
    """Returns the report that a node gave an unusable answer."""
    seen = (Reading(UNREACHABLE, bad=False), Reading(UNREADABLE, value=why, bad=True))
    return Report(node.name, SWEEP, seen, cursor.boot_id)


def unrecorded(report: Report) -> Report:
    """Returns the report that what a node or BMC showed cannot be recorded. It counts as asked; others come first."""
    check, device = (bmc.SILENT, "bmc") if report.source == BMC else (UNREADABLE, "node")
    seen = Reading(check, device, "what it showed cannot be recorded", bad=True)
    asked = report.bmc
    if asked is not None:  # what was read cannot be recorded, so the cursor keeps what it knew
        asked = dataclasses.replace(store.bmcs.cursors([report.node])[report.node], tried_at=asked.tried_at)
    return Report(report.node, report.source, (seen,), report.boot_id, bmc=asked)
