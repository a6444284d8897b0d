"""Plots as geometry for inline SVG: a strip of one metric's devices, and one metric over a node's life. Pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from muster.model.figures import Point
from muster.web import keys
from muster_criteria.fleet.peers.bands import Band
from muster_criteria.labels import Key
from muster_criteria.model import Observation
from muster_criteria.words import apart, beyond, number
from muster_reports.model import RunReport, Series

WIDTH = 560
"""Width of a plot in its own units; the page scales it."""
_UNNAMED = ("bool", "count")
"""Units that add nothing to the metric's name."""
LIFE_HEIGHT = 160
MARGIN = 8
SERIES_MAX = 16


@dataclasses.dataclass(frozen=True)
class Seen:
    """One observation of a run: the stage, the device as plots name it, and what it is a figure of."""

    stage: str
    device: str
    key: Key
    of: Observation


@dataclasses.dataclass(frozen=True)
class Dot:
    """One value: where it is drawn, whether it was found in order, and its words."""

    x: float
    ok: bool
    title: str


@dataclasses.dataclass(frozen=True)
class Peers:
    """What is usual among the peers: where their 5th percentile, median and 95th percentile are drawn, and in words."""

    low: float
    median: float
    high: float
    words: str


@dataclasses.dataclass(frozen=True)
class Strip:
    """One metric of one stage: a dot a device between the least and the greatest value or limit. ``metric``: both, in
    words. ``failed``: devices out of limits. ``most``: the devices with the least and the greatest value; both empty
    where all values are alike.
    """

    metric: str
    unit: str
    low: str
    high: str
    dots: tuple[Dot, ...]
    limits: tuple[tuple[float, str], ...]
    failed: tuple[str, ...]
    least: str
    most: str
    peers: Peers | None


@dataclasses.dataclass(frozen=True)
class Line:
    """One device's values over time as an SVG path, and its last value's words."""

    device: str
    path: str
    last: str


@dataclasses.dataclass(frozen=True)
class Life:
    """One metric over a node's life."""

    unit: str
    low: str
    high: str
    begin: str
    end: str
    lines: tuple[Line, ...]
    left_out: int
    limits: tuple[tuple[float, str], ...]


def seen(report: RunReport, *, by_node: bool = False) -> list[Seen]:
    """What a run measured. ``by_node``: devices are named with their node, which stands for itself alone."""
    return [
        Seen(
            stage.judgement.stage, f"{report.node} {each.device}".removesuffix(" node") if by_node else each.device,
            Key.of(each.device, each.metric, each.labels, each.unit), each,
        )
        for stage in report.stages
        for each in stage.judgement.observations
    ]  # fmt: skip


def strips(
    observed: Iterable[Seen], bands: Mapping[Key, Band] | None = None, *, judged_only: bool = True
) -> list[Strip]:
    """A strip for each figure of each stage with a number, those with failed devices first, then by name.

    ``bands``: what is usual among the peers. ``judged_only``: leave out what has no limit and breaks no rule.
    """
    groups: dict[tuple[str, Key], list[tuple[str, float, Observation]]] = collections.defaultdict(list)
    for each in observed:
        if each.of.value is not None:
            groups[each.stage, each.key].append((each.device, each.of.value, each.of))
    drawn = [
        _strip(f"{keys.words(key)} in {stage}", key.unit, rows, (bands or {}).get(key))
        for (stage, key), rows in groups.items()
        if not judged_only or any((row.floor, row.ceiling, row.ok) != (None, None, True) for _, _, row in rows)
    ]
    return sorted(drawn, key=lambda strip: (not strip.failed, strip.metric))


def _strip(metric: str, unit: str, rows: Sequence[tuple[str, float, Observation]], band: Band | None) -> Strip:
    unit = "" if unit in _UNNAMED else unit
    bounds = {("at least", row.floor) for _, _, row in rows if row.floor is not None}
    bounds |= {("at most", row.ceiling) for _, _, row in rows if row.ceiling is not None}
    for exact in [limit for word, limit in bounds if word == "at least" and ("at most", limit) in bounds]:
        bounds = {bound for bound in bounds if bound[1] != exact} | {("exactly", exact)}
    usual = [band.low, band.median, band.high] if band else []
    scale = _Scale([*(value for _, value, _ in rows), *(limit for _, limit in bounds), *usual], WIDTH)
    digits = apart(beyond((value, row.floor, row.ceiling) for _, value, row in rows))
    dots = tuple(
        Dot(scale.at(value), row.ok, f"{device}: {number(value, digits)} {unit}".rstrip())
        for device, value, row in rows
    )
    limits = tuple(
        (scale.at(limit), f"{word} {number(limit, digits)} {unit}".rstrip()) for word, limit in sorted(bounds)
    )
    failed = tuple(device for device, _, row in rows if not row.ok)
    ranked = sorted((value, device) for device, value, _ in rows)
    least, most = ranked[0], ranked[-1]
    ends = ("", "") if least[0] == most[0] else (least[1], most[1])
    peers = Peers(scale.at(band.low), scale.at(band.median), scale.at(band.high), _words(band, unit)) if band else None
    low, high = (number(end, digits) for end in (scale.low, scale.high))
    return Strip(metric, unit, low, high, dots, limits, failed, *ends, peers)


def _words(band: Band, unit: str) -> str:
    ends = f"{number(band.low)} to {number(band.high)}"
    return f"90 % of {band.count:,} peers: {ends}, median {number(band.median)} {unit}".rstrip()


def life(points: Sequence[Point]) -> Life | None:
    """The lines of one figure, one a device, at most ``SERIES_MAX``; None without points.

    A limit is drawn if it is the last one of each line; else it stands in the words of the lines that it is for.
    """
    if not points:
        return None
    series: dict[str, list[Point]] = collections.defaultdict(list)
    for point in points:
        series[point.device].append(point)
    latest, drawn = points[-1], list(series.items())[:SERIES_MAX]
    digits = apart(beyond((of[-1].value, of[-1].floor, of[-1].ceiling) for _, of in drawn))
    limits = [_limits(of[-1]) for _, of in drawn]
    bounds = set.intersection(*limits)
    across = _Scale([point.at.timestamp() for point in points], WIDTH)
    up = _Scale([*(point.value for point in points), *(limit for _, limit in bounds)], LIFE_HEIGHT)
    lines = [
        Line(
            name,
            _path([(across.at(each.at.timestamp()), LIFE_HEIGHT - up.at(each.value)) for each in of]),
            ", ".join([
                f"{name}: {number(of[-1].value, digits)} {of[-1].unit} on {of[-1].at:%Y-%m-%d}",
                *(f"{word} {number(limit, digits)} {of[-1].unit}" for word, limit in sorted(own - bounds)),
            ]),
        )
        for (name, of), own in zip(drawn, limits, strict=True)
    ]  # fmt: skip
    return Life(
        latest.unit, number(up.low), number(up.high), f"{points[0].at:%Y-%m-%d}", f"{latest.at:%Y-%m-%d}",
        tuple(lines), max(0, len(series) - SERIES_MAX),
        tuple(
            (LIFE_HEIGHT - up.at(limit), f"{word} {number(limit, digits)} {latest.unit}")
            for word, limit in sorted(bounds)
        ),
    )  # fmt: skip


def _limits(point: Point) -> set[tuple[str, float]]:
    found = (("at least", point.floor), ("at most", point.ceiling))
    return {(word, limit) for word, limit in found if limit is not None}


def curves(series: Sequence[Series]) -> Life | None:
    """One telemetry series of a stage, a line a device; None without two points."""
    drawn = [each for each in series if len(each.values) > 1]
    if not drawn:
        return None
    across = _Scale([second for each in drawn for second in each.seconds], WIDTH)
    up = _Scale([value for each in drawn for value in each.values], LIFE_HEIGHT)
    lines = [
        Line(
            each.device,
            _path([
                (across.at(second), LIFE_HEIGHT - up.at(value))
                for second, value in zip(each.seconds, each.values, strict=True)
            ]),
            f"{each.device}: {number(min(each.values))} to {number(max(each.values))} {each.unit}",
        )
        for each in drawn[:SERIES_MAX]
    ]  # fmt: skip
    return Life(
        drawn[0].unit, number(up.low), number(up.high), "0 s", f"{number(across.high)} s", tuple(lines),
        max(0, len(drawn) - SERIES_MAX), (),
    )  # fmt: skip


def _path(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path through the points; a short dash at a single one, which has no line."""
    if len(points) == 1:
        ((x, y),) = points
        return f"M{x - 4:.1f},{y:.1f}h8"
    return "M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


class _Scale:
    """Maps values to pixels between margins; values that are all alike lie in the middle."""

    def __init__(self, values: Sequence[float], pixels: int) -> None:
        self.low, self.high = min(values), max(values)
        self._pixels = pixels

    def at(self, value: float) -> float:
        width = self.high - self.low
        share = (value - self.low) / width if width > 0 else 0.5
        return round(MARGIN + share * (self._pixels - 2 * MARGIN), 1)
