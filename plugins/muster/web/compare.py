"""Two runs side by side: the figures that differ most, findings of one alone, and what else was different. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping

from muster.web import plots
from muster_criteria.model import Observation
from muster_reports.model import RunReport

ROWS_MAX = 200
OWN, SERIALS = ("boot_id", "hostname"), "serials "
"""What differs between any two boots, and between any two nodes: no difference worth a line."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One metric of one stage: medians over the devices, and the relative change from left to right.

    ``better``: whether the change is for the better, by the metric's limits; None where no limit shows a direction.
    """

    stage: str
    metric: str
    unit: str
    left: float | None
    right: float | None
    change: float | None
    better: bool | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """``only_left``, ``only_right``: summaries of findings. ``versions``: (name, left, right) where they differ."""

    rows: tuple[Row, ...]
    left_out: int
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    versions: tuple[tuple[str, str, str], ...]


def compare(left: RunReport, right: RunReport) -> Comparison:
    """The differences, greatest relative change first; what only one run measured comes last."""
    ours, theirs = _groups(left), _groups(right)
    rows = [_row(key, ours.get(key, []), theirs.get(key, [])) for key in {**ours, **theirs}]
    rows.sort(key=lambda row: (row.change is None, -abs(row.change or 0.0), row.stage, row.metric))
    a, b = _findings(left), _findings(right)
    apart = left.node != right.node
    known, other = dict((*left.identity, *left.environment)), dict((*right.identity, *right.environment))
    versions = tuple(
        (name, known.get(name, ""), other.get(name, ""))
        for name in {**known, **other}
        if known.get(name, "") != other.get(name, "") and not (name in OWN or (apart and name.startswith(SERIALS)))
    )
    only_left, only_right = (each for each in a if each not in b), (each for each in b if each not in a)
    left_out = max(0, len(rows) - ROWS_MAX)
    return Comparison(tuple(rows[:ROWS_MAX]), left_out, tuple(only_left), tuple(only_right), versions)


Key = tuple[str, str, str]


def _groups(report: RunReport) -> Mapping[Key, list[Observation]]:
    groups: dict[Key, list[Observation]] = {}
    for stage in report.stages:
        for each in stage.judgement.observations:
            if each.value is not None:
                groups.setdefault((stage.judgement.stage, plots.named(each), each.unit), []).append(each)
    return groups


def _row(key: Key, left: list[Observation], right: list[Observation]) -> Row:
    stage, metric, unit = key
    before, after = _median(left), _median(right)
    change = (after - before) / abs(before) if before and after is not None else None
    if before == after and before is not None:
        change = 0.0
    more_is_better = _more_is_better([*left, *right])
    better = None if not change or more_is_better is None else (change > 0) is more_is_better
    return Row(stage, metric, unit, before, after, change, better)


def _more_is_better(rows: Iterable[Observation]) -> bool | None:
    """True for a metric with floors alone, False for one with ceilings alone."""
    floors = any(row.floor is not None for row in rows)
    ceilings = any(row.ceiling is not None for row in rows)
    return floors if floors is not ceilings else None


def _median(rows: list[Observation]) -> float | None:
    return statistics.median(row.value for row in rows if row.value is not None) if rows else None


def _findings(report: RunReport) -> dict[str, None]:
    return dict.fromkeys(each.summary for stage in report.stages for each in stage.judgement.findings)
