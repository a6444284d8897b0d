"""Two runs side by side: the figures that differ most, findings of only one, and other differences. Pure."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence

from muster.web import keys, plots
from muster_criteria.labels import Key
from muster_criteria.model import Observation
from muster_criteria.sku_files.figures import SCALE
from muster_reports.model import RunReport

ROWS_MAX = 200
NOISE = 0.0005
"""A smaller change is shown as 0.0 %, neither better nor worse."""
OWN, SERIALS = ("boot_id", "hostname"), "serials "
"""What differs between any two boots, and between any two nodes, and is not listed."""


@dataclasses.dataclass(frozen=True)
class Worst:
    """The worst device of each run by the metric's limits, and ``change`` and ``better`` as a row has them."""

    left_device: str
    left: float
    right_device: str
    right: float
    change: float | None
    better: bool | None


@dataclasses.dataclass(frozen=True)
class Row:
    """One metric of one stage: medians over the devices, and the relative change from left to right, infinite from 0.

    ``better``: whether the change is for the better: by the unit of a rate, else by the limits; None if no limit shows
    a direction. ``worst``: None then as well, where one run did not measure it, and where each has one device.
    """

    stage: str
    metric: str
    unit: str
    left: float | None
    right: float | None
    change: float | None
    better: bool | None
    worst: Worst | None = None

    @property
    def greatest(self) -> float:
        """The greater of the two relative changes, without its sign."""
        return max(abs(self.change or 0.0), abs((self.worst and self.worst.change) or 0.0))


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
    rows.sort(key=lambda row: (row.change is None, -row.greatest, row.stage, row.metric))
    apart = left.node != right.node
    known, other = dict((*left.identity, *left.environment)), dict((*right.identity, *right.environment))
    versions = tuple(
        (name, known.get(name, ""), other.get(name, ""))
        for name in {**known, **other}
        if known.get(name, "") != other.get(name, "") and not (name in OWN or (apart and name.startswith(SERIALS)))
    )
    left_out = max(0, len(rows) - ROWS_MAX)
    return Comparison(tuple(rows[:ROWS_MAX]), left_out, _alone(left, right), _alone(right, left), versions)


def words(of: Row | Worst) -> str:
    """The change, and whether it is for the better."""
    if of.change is None:
        return "–"
    if math.isinf(of.change):
        share = "from 0"
    else:
        share = "0.0 %" if abs(of.change) < NOISE else f"{100 * of.change:+.1f} %"
    return share if of.better is None else f"{share} {'better' if of.better else 'worse'}"


def _groups(report: RunReport) -> Mapping[tuple[str, Key], list[Observation]]:
    groups: dict[tuple[str, Key], list[Observation]] = {}
    for each in plots.seen(report):
        if each.of.value is not None:
            groups.setdefault((each.stage, each.key), []).append(each.of)
    return groups


def _row(of: tuple[str, Key], left: list[Observation], right: list[Observation]) -> Row:
    stage, key = of
    before, after = _median(left), _median(right)
    more_is_better = _more_is_better([*left, *right])
    change = _change(before, after)
    return Row(
        stage, keys.words(key), key.unit, before, after, change, _better(change, more_is_better),
        _worst(left, right, more_is_better),
    )  # fmt: skip


def _worst(left: list[Observation], right: list[Observation], more_is_better: bool | None) -> Worst | None:
    if more_is_better is None or not left or not right or len(left) == len(right) == 1:
        return None
    choose = min if more_is_better else max
    before, after = (choose((row.value or 0.0, row.device) for row in rows) for rows in (left, right))
    change = _change(before[0], after[0])
    return Worst(before[1], before[0], after[1], after[0], change, _better(change, more_is_better))


def _change(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    if before == after:
        return 0.0
    return (after - before) / abs(before) if before else math.copysign(math.inf, after)


def _better(change: float | None, more_is_better: bool | None) -> bool | None:
    return None if change is None or abs(change) < NOISE or more_is_better is None else (change > 0) is more_is_better


def _more_is_better(rows: Sequence[Observation]) -> bool | None:
    """True for a rate and a metric with floors, False for one with ceilings alone; None where any other value breaks
    a limit.
    """
    if any(row.unit.removesuffix("/GHz") in SCALE for row in rows):
        return True  # its ceiling is what physics allows
    open_ended = [row for row in rows if row.floor != row.ceiling]
    return any(row.floor is not None for row in open_ended) if open_ended else None


def _median(rows: list[Observation]) -> float | None:
    return statistics.median(row.value for row in rows if row.value is not None) if rows else None


def _alone(one: RunReport, other: RunReport) -> tuple[str, ...]:
    """The summaries of what was found in ``one`` alone, whatever figures they name."""
    known = {found for found, _ in _findings(other)}
    return tuple(dict.fromkeys(summary for found, summary in _findings(one) if found not in known))


def _findings(report: RunReport) -> list[tuple[Hashable, str]]:
    """(what was found, the summary) of each finding."""
    return [
        ((stage.judgement.stage, each.rule, each.metric, each.device, each.labels), each.summary)
        for stage in report.stages
        for each in stage.judgement.findings
    ]
