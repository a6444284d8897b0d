"""Stragglers: members that compute longest and wait least, while the others wait for them."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from muster_criteria.cluster.model import (
    COLLECTIVES,
    OTHERS_MIN,
    TRAINING,
    BlockFindings,
    Measurements,
    fault_of,
    number_of,
    of_limit,
)
from muster_criteria.model import Extent, FaultClass, Gap, Lack, Severity
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import BlockProgramme
from muster_criteria.words import against, figure, listed, unlike

PARTS = ("step_compute", "step_wait")
"""What a step consists of here."""

FEW_CONFIDENCE = 0.5
"""Confidence of a finding that is based on fewer than ``OTHERS_MIN`` others."""


@dataclasses.dataclass(frozen=True)
class Pace:
    """One member's step: seconds of compute and of exposed communication (medians of ``steps``), and the ``spread`` of
    the former, (p95 − p5) / median.
    """

    compute: float
    wait: float
    spread: float
    steps: int
    devices: Mapping[str, float]
    key: tuple[str, ...]

    @property
    def noise(self) -> float:
        """By what share the medians of two equal nodes differ by chance, if steps are independent and normal.

        For n such steps the spread is 3.29 sigma, and the difference of two medians has a standard deviation of 1.77
        sigma / √n, so 2 spread / √n is 3.7 standard deviations.
        """
        return 2.0 * self.spread / math.sqrt(self.steps)


def judge_pace(programme: BlockProgramme, members: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Finds stragglers; warns of slow members that no other waits for, and of members late to collectives."""
    paces = {name: pace for name, measured in members.items() if (pace := _pace(measured)) is not None}
    for name in members.keys() - paces.keys():
        if all(_of_node(members[name], metric) for metric in PARTS):
            block.suspect([name], Lack.REFUSED, f"it sent no single time above zero of {' and '.join(PARTS)}")
    for name, pace in paces.items():
        others = [other for at, other in paces.items() if at != name]
        alike = [other for other in others if other.key == pace.key]
        if alike:
            _judge_one(name, pace, alike, programme, block)
        else:
            _leave_unjudged(name, pace, others, programme, block)
    _judge_lateness(members, programme.limit("arrival_lag", "warn"), block)


def _pace(measured: Measurements) -> Pace | None:
    compute, wait = (measured.value(TRAINING, metric) for metric in PARTS)
    if compute is None or wait is None or compute <= 0:
        return None
    rows = measured.rows(TRAINING, "step_compute")
    devices = {row.device: row.value for row in rows if row.device != "node" and row.value is not None}
    node = next(row for row in rows if row.device == "node")
    keys = measured.texts(TRAINING, "pace_key")
    return Pace(compute, wait, node.spread or 0.0, max(node.samples, 1), devices, keys)


def _of_node(measured: Measurements, metric: str) -> bool:
    """Whether it reports the metric of the whole node."""
    return any(row.device == "node" and row.value is not None for row in measured.rows(TRAINING, metric))


def _limits(pace: Pace, programme: BlockProgramme) -> tuple[Limit, Limit]:
    devices = "several" if len(pace.devices) > 1 else "one"
    warn, fail = (programme.limit("step_excess", breach, devices=devices) for breach in ("warn", "fail"))
    return warn, fail


def _leave_unjudged(
    name: str, pace: Pace, others: Sequence[Pace], programme: BlockProgramme, block: BlockFindings
) -> None:
    """Notes that a member has no comparison, and how much slower it is than the others, which its libraries may
    explain."""
    apart = listed([unlike(key, [key for other in others for key in other.key]) for key in pace.key]) or "unknown"
    why = f"not compared: no other member has its devices and libraries ({apart})"
    usual = statistics.median([other.compute for other in others] or [pace.compute])
    excess = 100 * (pace.compute / usual - 1.0)
    if excess > number_of(_limits(pace, programme)[1]):
        why += f"; it computes {figure(pace.compute, 's')} a step, {excess:.1f} % more than the others"
        block.slower.add(name)
        block.note(f"{name}: {why}.")
    block.unjudged.setdefault(name, []).append(Gap(Lack.NOT_COMPARED, why, f"step_compute of {TRAINING}"))


def _judge_one(name: str, pace: Pace, others: list[Pace], programme: BlockProgramme, block: BlockFindings) -> None:
    warn, fail = _limits(pace, programme)
    usual = statistics.median(other.compute for other in others)
    excess, gap = 100 * (pace.compute / usual - 1.0), pace.compute - usual
    if excess <= max(number_of(warn), 100 * statistics.median(other.noise for other in others)):
        return
    # All ranks wait for communication that no compute hides; the others also wait for the straggler.
    holds_up = statistics.median(other.wait for other in others) - pace.wait >= gap / 2
    # If steps have two levels (a toggling clock), medians differ by as much as single steps do.
    surely = excess > max(number_of(fail), 100 * statistics.median(other.spread for other in others))
    fails = surely and holds_up and len(others) >= OTHERS_MIN
    limit = fail if fails else warn
    device = _culprit(pace, others, number_of(limit))
    waits = "and waits least" if holds_up else "though the others do not wait for it"
    shown, at_most = against(pace.compute, usual * (1 + number_of(limit) / 100), "s")
    observed = f"{shown} a step, {excess:.1f} % more than the others, {waits}"
    expected = f"≤ {at_most} ({limit.number:g} % above the median of {len(others)} others)"
    found = of_limit(
        limit, "straggler", "step_compute", observed, expected, f"{device} {limit.meaning}: it computes {observed}.",
        device=device, fault_class=fault_of(device), severity=Severity.CRITICAL if fails else Severity.WARNING,
        confidence=1.0 if len(others) >= OTHERS_MIN else FEW_CONFIDENCE,
        extent=Extent(usual / pace.compute, "share", "lower"),
    )  # fmt: skip
    block.add(name, found)


def _culprit(pace: Pace, others: list[Pace], limit: float) -> str:
    """Returns the device that makes a node slow, if one is an outlier; else "node"."""
    usual = statistics.median([seconds for other in [pace, *others] for seconds in other.devices.values()] or [0.0])
    slowest = max(pace.devices, key=lambda device: (pace.devices[device], device), default="node")
    return slowest if usual > 0 and 100 * (pace.devices.get(slowest, 0.0) / usual - 1.0) > limit else "node"


def _judge_lateness(members: Mapping[str, Measurements], limit: Limit, block: BlockFindings) -> None:
    """Warns of members late to most collectives by more than a collective takes: a slow host, not a slow device."""
    lags: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for name, measured in members.items():
        for row in measured.rows(COLLECTIVES, "arrival_lag"):
            seconds = measured.value(COLLECTIVES, "collective_time", **row.labels)
            if row.value is not None and seconds is not None:
                key = (row.labels.get("op", ""), row.labels.get("bytes", ""))
                lags.setdefault(key, {})[name] = (row.value, seconds)
    # Only collectives that most took part in count: a member may report any number of others.
    lags = {key: rows for key, rows in lags.items() if 2 * len(rows) > len(members)}
    for name in members:
        late = [rows[name] for rows in lags.values() if name in rows and _is_late(name, rows, number_of(limit))]
        if lags and 2 * len(late) > len(lags):
            lag, seconds = max(late)
            shown, most = against(lag, number_of(limit), "s")
            observed = f"up to {shown} late to collectives that take {figure(seconds, 's', unlike=lag)}"
            expected = f"to arrive with the others, within the collective's time or {most}"
            summary = f"The node {limit.meaning} to {len(late)} of {len(lags)} collectives: {observed}."
            block.add(name, of_limit(limit, "late", "arrival_lag", observed, expected, summary,
                                     fault_class=FaultClass.NODE))  # fmt: skip


def _is_late(name: str, rows: Mapping[str, tuple[float, float]], least_s: float) -> bool:
    lag, seconds = rows[name]
    next_lag = max((other for at, (other, _) in rows.items() if at != name), default=0.0)
    return lag > max(least_s, seconds, 2 * next_lag)
