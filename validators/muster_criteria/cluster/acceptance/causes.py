"""Names the stragglers of a block's training and, where counters show it, why they are slow."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from muster_criteria.cluster.acceptance.values import Member
from muster_criteria.cluster.model import TRAINING
from muster_criteria.measured import THROTTLED
from muster_criteria.model import Observation
from muster_criteria.words import figure, listed

SLOW_GEMM = 0.97
"""Share of the other members' median product rate below which a device is slow by itself. Chosen here, between the
spread of healthy GPUs of a node (up to 5 %, stas00/ml-engineering) and the excess that makes a straggler."""
SLOW_CLOCK = 0.97
"""Share of the others' median clock in a step below which a device is slow for its clock. Chosen here, as
``SLOW_GEMM``."""


def stragglers(members: Sequence[Member]) -> Iterator[tuple[Member, str, str, str]]:
    """(member, device or "node", what was observed, cause) of each straggler that was found."""
    for member in members:
        for found in member.findings:
            if found.rule == "straggler":
                yield member, found.device, found.observed, cause(member, found.device, members)


def cause(member: Member, device: str, members: Sequence[Member]) -> str:
    """Why a device is slow: throttled, a slow clock, slow by itself, or not known.

    ``device`` "node": any of its devices.
    """
    mine = [each for each in member.observations if device in ("node", each.device)]
    throttled = [each for each in mine if each.metric == "throttle_time" and each.value and _reason(each) in THROTTLED]
    if throttled:
        worst = max(throttled, key=lambda each: each.value or 0.0)
        where = f"{worst.device} was " if device == "node" else ""
        return f"{where}throttled for {figure(round(worst.value or 0.0, 1), 's')} ({_reason(worst)})"
    clock = _of_others(member, device, members, "step_clock")
    if clock is not None and clock < SLOW_CLOCK:
        return f"slow clock: in a step it ran at {100 * clock:.0f} % of the others' clock"
    share = _of_others(member, device, members, "gemm_best")
    if share is not None and share < SLOW_GEMM:
        return f"slow by itself: before the load its matrix products reached {100 * share:.0f} % of the others' rate"
    if late := [each for each in member.findings if each.rule in ("slow_path", "late")]:
        return f"together with: {listed(sorted({each.rule.replace('_', ' ') for each in late}))}"
    seen = "" if any(each.metric == "throttle_time" for each in mine) else "its throttling could not be read; "
    alike = "its matrix products before the load were as fast as the others'" if share is not None else "unknown"
    return f"not known: {seen}{alike}"


def _of_others(member: Member, device: str, members: Sequence[Member], metric: str) -> float | None:
    """A device's training metric (for "node" the lowest) as a share of the median of all other members' devices."""

    def rates(of: Member, only: str) -> list[float]:
        return [
            each.value for each in of.observations
            if (each.probe, each.metric) == (TRAINING, metric) and each.value and only in ("node", each.device)
        ]  # fmt: skip

    own = rates(member, device)
    others = [rate for each in members for rate in rates(each, "node") if each is not member]
    return min(own) / statistics.median(others) if own and others else None


def _reason(each: Observation) -> str:
    return dict(each.labels).get("reason", "")
