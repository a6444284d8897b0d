"""GPUs' states and counters over a block's loads: the limits of a node's burn-in apply here too.

A node has its own reasons to throttle or lose a GPU. Heat or power braking on most members of a rack, or of the block,
is the hall's fault, and a hot inlet excuses what it explains: then none of these members fails, and none passes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from muster_criteria.cluster.fabric.decoding.nodes import MOST
from muster_criteria.cluster.model import BlockFindings, Measurements, number_of, of_limit
from muster_criteria.devices import kind_of
from muster_criteria.measured import NOT_SUPPORTED, Measured
from muster_criteria.model import Extent, FaultClass, Finding, Lack, Severity
from muster_criteria.sku_files.limits import Limit
from muster_criteria.words import against, figure, listed

PROBE = "gpu_watch"
COMMON_MIN = 3
"""Fewest members with the same finding that may have a common cause: chosen here, as for ports."""
_SHARED = (FaultClass.COOLING, FaultClass.PSU)
"""Faults that a hall, or its power, may cause on many nodes at once."""
_LOAD = "burn_in"


def watch_limits(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """The limits of a SKU that bound from above what is read of a GPU or of its inlet under load."""
    return tuple(
        each for each in limits
        if each.key in ("exactly", "ceiling") and each.number is not None and (not each.stages or _LOAD in each.stages)
        and (each.device == "gpu" or (each.breach == "invalid" and each.device == "node"))
    )  # fmt: skip


def judge_watched(
    limits: Mapping[str, Sequence[Limit]], racks: Mapping[str, str], members: Mapping[str, Measurements],
    block: BlockFindings,
) -> None:  # fmt: skip
    """Adds a finding for each limit that a GPU breaks. By member, ``limits``: from ``watch_limits``; ``racks``: "" if
    unknown."""
    broken: dict[tuple[object, ...], dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for name, measured in members.items():
        invalid = dict(_invalid(limits[name], measured))
        for row in _unread(limits[name], measured):
            reason = row.note or "the node does not say why"
            block.suspect([name], Lack.UNREADABLE, f"{row.device} {row.metric} is not known: {reason}")
        for limit, row in _broken(limits[name], measured):
            if limit.breach == "invalid":
                block.suspect([name], Lack.INVALID, _finding(limit, row).summary)
            elif why := invalid.get(limit.metric):
                block.suspect([name], Lack.INVALID, f"{row.device} {limit.meaning}, and {why}")
            else:
                broken[limit.metric, *sorted(limit.labels.items())][name].append(_finding(limit, row))
    for found in broken.values():
        grave = {
            name: each for name, findings in found.items() for each in findings
            if each.fault_class in _SHARED and each.severity is Severity.CRITICAL
        }  # fmt: skip
        alike = _alike(grave, racks)
        if alike:
            first = grave[alike[0]]
            what = " ".join((first.metric, *(value for _, value in first.labels)))
            why = f"{what} of {listed(alike)} alike: suspect what they share, such as cooling or power"
            if not all(racks[name] for name in alike):
                why += "; not all of their racks are known, which would tell who shares it"
            block.suspect(alike, Lack.UNDECIDED, why)
            block.note(f"{why[0].upper()}{why[1:]}.")
        for name, findings in found.items():
            for each in findings if name not in alike else ():
                block.add(name, each)


def _alike(found: Collection[str], racks: Mapping[str, str]) -> list[str]:
    """Members that may have a common cause: all if they are most of the block; else those without a known rack, and
    those of a rack of which most and at least ``COMMON_MIN`` are ill. Empty if fewer than ``COMMON_MIN``."""
    ill, whole = Counter(racks[name] for name in found), Counter(racks.values())
    in_hall = {rack for rack in ill if not rack or ill[rack] >= max(COMMON_MIN, MOST * whole[rack])}
    most = len(found) >= MOST * len(racks)
    alike = sorted(name for name in found if most or racks[name] in in_hall)
    return alike if len(alike) >= COMMON_MIN else []


def _unread(limits: Sequence[Limit], measured: Measurements) -> Iterator[Measured]:
    """Rows without a value for limits that could fail a GPU, except metrics that it does not support."""
    for limit in limits:
        for row in measured.rows(PROBE, limit.metric) if limit.breach == "fail" else ():
            applies = limit.applies_to(row.metric, kind_of(row.device), dict(row.labels))
            if row.value is None and row.note != NOT_SUPPORTED and applies:
                yield row


def _broken(limits: Sequence[Limit], measured: Measurements) -> Iterable[tuple[Limit, Measured]]:
    """(limit, row) for each broken limit; a row that breaks both a failing and a warning one counts once, as
    failing."""
    failing: set[tuple[object, ...]] = set()
    for limit in sorted(limits, key=lambda each: each.breach != "fail"):
        for row in measured.rows(PROBE, limit.metric):
            over = limit.device == "gpu" and row.value is not None and row.value > number_of(limit)
            place = (row.metric, row.device, *sorted(row.labels.items()))
            if over and limit.applies_to(row.metric, kind_of(row.device), dict(row.labels)) and place not in failing:
                failing.update([place] if limit.breach == "fail" else ())
                yield limit, row


def _invalid(limits: Sequence[Limit], measured: Measurements) -> Iterable[tuple[str, str]]:
    """(metric, why) for metrics that an inlet beyond its limit makes invalid as measurements of the GPU."""
    for limit in limits:
        value = measured.value(PROBE, limit.metric)
        if limit.breach == "invalid" and value is not None and value > number_of(limit):
            for metric in limit.invalidates:
                yield metric, f"the node {limit.meaning}: {figure(value, limit.unit, unlike=number_of(limit))}"


def _finding(limit: Limit, row: Measured) -> Finding:
    value, most = against(row.value or 0.0, number_of(limit), limit.unit)
    observed = value + (f" ({row.note})" if row.note else "")
    return of_limit(
        limit, limit.kind.rule, limit.metric, observed, f"≤ {most}",
        f"{row.device} {limit.meaning}: {observed}.", device=row.device, labels=tuple(sorted(limit.labels.items())),
        severity=Severity.CRITICAL if limit.breach == "fail" else Severity.WARNING,
        extent=Extent(row.value or 0.0, limit.unit, "higher"),
    )  # fmt: skip
