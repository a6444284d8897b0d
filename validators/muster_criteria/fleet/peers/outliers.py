"""Distances of healthy devices by each rule: scales and tails, estimated from a fleet's last visits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from scipy.stats import median_abs_deviation

from muster_criteria.fleet import budget
from muster_criteria.fleet.peers.cells import Cells, cells_of
from muster_criteria.fleet.peers.distances import Distances, distances, family_indices, own_changes
from muster_criteria.fleet.peers.explained import estimated_slopes, slopes_of, without_given
from muster_criteria.fleet.peers.tails import PROBABILITIES, tails_of
from muster_criteria.fleet.series.comparisons import Comparison, Spread
from muster_criteria.fleet.series.keyed import SERIES, Codes, Keyed, Numbers, keyed, together
from muster_criteria.fleet.series.timeline import Matrix, Timeline, row_medians, timeline
from muster_criteria.fleet.series.weight import within_weight

SCALES = ("rule", "sku", *SERIES, "scale", "size")
"""``scale``: 1.4826 × MAD of the rule's distances over all devices of the SKU, as a share; never below its floor.
``size``: number of these distances."""
TAILS = ("rule", "repeats", "sku", "kind", "metric", "size", *(f"q{at}" for at in range(len(PROBABILITIES))))
"""Distances, in scales, that healthy devices exceed with each of ``tails.PROBABILITIES``, pooled over a metric's
labels; metrics with too few values use the pool of all metrics of a kind (``metric`` empty). ``repeats`` 2: the milder
of two visits."""

GAUSSIAN_MAD = 1.4826
DRIFT_VISITS = 4
"""Number of each device's latest visits from which its distances from its own past are estimated."""


@dataclasses.dataclass(frozen=True, eq=False)
class Estimated:
    """Figures estimated from a fleet's readings.

    ``cells``: the median, 5th and 95th percentile of each (series, peer group, slot), see ``cells``. ``scales`` and
    ``tails``: distances of healthy devices, for each rule. ``slopes``: how one metric explains others, see
    ``explained``. ``low`` and ``varied``: total weight of a node's series of each spread, by which the budget is
    divided.
    """

    cells: pd.DataFrame
    scales: pd.DataFrame
    tails: pd.DataFrame
    slopes: pd.DataFrame
    low: float
    varied: float
    nodes: int


@dataclasses.dataclass(frozen=True, eq=False)
class _Sample:
    """Distances of one rule: of the latest visit, and the milder of the two latest (NaN if there is only one)."""

    rule: str
    sku: Codes
    series: Codes
    latest: Numbers
    milder: Numbers


def estimate(readings: pd.DataFrame, comparisons: Sequence[Comparison]) -> Estimated:
    """Cells, scales and tails of these readings."""
    fleet = within_weight(keyed(readings, comparisons, by_day=True))
    latest = _latest(fleet)
    cells = cells_of(latest)
    usual, _, _ = Cells(cells).usual(latest)
    ratio = latest.value / usual
    indices = family_indices(latest, ratio)
    slopes = estimated_slopes(indices, latest, ratio)
    indices = together(indices, without_given(indices, latest, ratio, slopes_of(slopes)))
    cells = pd.concat([cells, cells_of(indices)], ignore_index=True) if len(indices) else cells
    measured = distances(fleet, Cells(cells), slopes_of(slopes))
    samples = list(_samples(measured))
    scales = pd.DataFrame([row for each in samples for row in _scales(each, measured.readings)], columns=SCALES)
    tails = pd.DataFrame([row for each in samples for row in _tails(each, measured.readings)], columns=TAILS)
    everything = together(latest, indices)
    return Estimated(
        cells=cells,
        scales=scales,
        tails=tails,
        slopes=slopes,
        low=_weight(everything, "low"),
        varied=_weight(everything, "varied"),
        nodes=len(np.unique(latest.node)),
    )


def _latest(readings: Keyed) -> Keyed:
    """One reading for each (node, device, series): of its latest day, the last run by name."""
    owner = readings.owner
    order = np.lexsort((readings.run, readings.day, owner))
    last = np.flatnonzero(np.diff(owner[order], append=-1))
    return readings.take(np.sort(order[last]))


def _weight(readings: Keyed, spread: Spread) -> float:
    """The largest total weight, over all nodes, of a node's series of this spread; each device counts."""
    weights = [each.weight if each.comparison.spread == spread else 0.0 for each in readings.catalogue]
    of = np.array(weights or [0.0])[readings.series]
    return round(float(np.bincount(readings.node, weights=of).max(initial=0.0)), 6)


def _samples(measured: Distances) -> Iterator[_Sample]:
    of = measured.readings
    owner, shared = of.owner, of.of_node
    sku_of_node = np.zeros(max(len(of.nodes), 1), dtype=np.int64)
    sku_of_node[of.node] = of.sku
    for rule, owners, per_node, value in (
        ("peers", owner, len(of.devices), measured.peers),
        ("siblings", owner, len(of.devices), measured.siblings),
        ("node_peers", shared, 1, of.sign * (measured.level - 1.0)),
    ):
        lines = timeline(owners, of.day, value)
        series, sku = _who(lines, of, per_node, sku_of_node)
        yield _Sample(rule, sku, series, _column(lines, -1), np.minimum(_column(lines, -1), _column(lines, -2)))
    signs = np.array([each.sign for each in of.catalogue] or [0.0])
    for rule, owners, per_node, value in (
        ("drift", owner, len(of.devices), measured.relative),
        ("node_drift", shared, 1, measured.own_level),
    ):
        lines = timeline(owners, of.day, value)
        series, sku = _who(lines, of, per_node, sku_of_node)
        shared_by = lines.owners // (per_node * len(of.catalogue)) * len(of.catalogue) + series
        who, latest, milder = _drifts(lines, signs[series], shared_by if per_node > 1 else None)
        yield _Sample(rule, sku[who], series[who], latest, milder)


def _who(lines: Timeline, of: Keyed, per_node: int, sku_of_node: Codes) -> tuple[Codes, Codes]:
    rest, series = np.divmod(lines.owners, max(len(of.catalogue), 1))
    return series, sku_of_node[rest // max(per_node, 1)]


def _column(lines: Timeline, at: int) -> Numbers:
    return lines.values[:, at].astype(np.float64)


def _drifts(lines: Timeline, sign: Numbers, siblings_of: Codes | None) -> tuple[Codes, Numbers, Numbers]:
    """(row of ``lines``, distance of a visit from the median of the others, the milder of the two latest distances).

    On healthy devices any visit is as far from the others as the latest is from those before, so each of the last
    ``DRIFT_VISITS`` is used: they show more of the tail and reduce the share of a fault in the latest visit.
    ``siblings_of``: which timelines are siblings, whose common change is removed; None for a node's own level.
    """

    def distance(judged: Sequence[int], others: Matrix) -> Numbers:
        enough = np.sum(np.isfinite(others), axis=1) >= budget.VISITS_MIN
        usual = np.where(enough, row_medians(others), np.nan)
        changes = [_column(lines, at) / usual for at in judged]
        if siblings_of is not None:
            changes = [own_changes(change, siblings_of)[0] for change in changes]
        return np.asarray(np.min([sign * (change - 1.0) for change in changes], axis=0))

    milder = distance((-1, -2), lines.values[:, :-2])
    rows, latest = [], []
    for at in range(-DRIFT_VISITS, 0):
        found = distance((at,), np.delete(lines.values, at, axis=1))
        known = np.flatnonzero(np.isfinite(found) | ((at == -1) & np.isfinite(milder)))
        rows.append(known)
        latest.append(found[known])
    last = len(rows[-1])
    unknown = np.full(sum(len(each) for each in rows) - last, np.nan)
    return np.concatenate(rows), np.concatenate(latest), np.concatenate([unknown, milder[rows[-1]]])


def _scales(sample: _Sample, of: Keyed) -> Iterator[tuple[object, ...]]:
    floor = GAUSSIAN_MAD * budget.MAD_FLOOR
    for (sku, series), rows in _by(sample.sku, sample.series):
        values = sample.latest[rows]
        values = values[np.isfinite(values)]
        if len(values) >= budget.PEERS_MIN:
            sigma = float(median_abs_deviation(values, scale="normal"))
            yield (sample.rule, of.skus[sku], *of.catalogue[series].key, max(floor, sigma), len(values))


def _tails(sample: _Sample, of: Keyed) -> Iterator[tuple[object, ...]]:
    """Tails of each metric, estimated with others of its kind of device and spread; then of each kind of device."""
    scale = np.full((max(len(of.skus), 1), max(len(of.catalogue), 1)), np.nan)
    skus = {name: at for at, name in enumerate(of.skus)}
    numbers = {each.key: at for at, each in enumerate(of.catalogue)}
    for _, sku_name, kind, metric, labels, unit, found, _ in _scales(sample, of):
        scale[skus[sku_name], numbers[kind, metric, labels, unit]] = found  # type: ignore[index]
    scales = scale[sample.sku, sample.series]
    series_of = {each.key[:2]: each for each in of.catalogue}
    metrics, kinds = list(series_of), list(dict.fromkeys((kind, "") for kind, _ in series_of))
    metric_of = np.array([metrics.index(each.key[:2]) for each in of.catalogue] or [0])[sample.series]
    kind_of = np.array([kinds.index((each.key[0], "")) for each in of.catalogue] or [0])[sample.series]
    for repeats, values in ((1, sample.latest / scales), (2, sample.milder / scales)):
        alike: dict[tuple[int, str, str], list[tuple[tuple[str, str], Numbers]]] = {}
        for (sku, which), rows in _by(sample.sku, metric_of):
            key = metrics[which]
            alike.setdefault((sku, key[0], series_of[key].comparison.spread), []).append((key, values[rows]))
        for (sku, _, _), pools in alike.items():
            tails = tails_of([(values, min(1.0, series_of[key].weight)) for key, values in pools])
            yield from _rows(sample.rule, repeats, of.skus[sku], pools, tails)
        for (sku, which), rows in _by(sample.sku, kind_of):
            tails = tails_of([(values[rows], 1.0)])
            yield from _rows(sample.rule, repeats, of.skus[sku], [(kinds[which], values[rows])], tails)


def _rows(
    rule: str,
    repeats: int,
    sku: str,
    pools: Sequence[tuple[tuple[str, str], Numbers]],
    tails: Sequence[Numbers | None],
) -> Iterator[tuple[object, ...]]:
    for ((kind, metric), values), tail in zip(pools, tails, strict=True):
        if tail is not None:
            yield (rule, repeats, sku, kind, metric, int(np.sum(np.isfinite(values))), *tail.tolist())


def _by(*codes: Codes) -> Iterator[tuple[tuple[int, ...], Codes]]:
    """Each combination of codes that there is, with the positions that have it."""
    size = [int(code.max(initial=0)) + 1 for code in codes]
    combined = np.ravel_multi_index(codes, size) if len(codes[0]) else codes[0]
    order = np.argsort(combined, kind="stable")
    starts = np.flatnonzero(np.diff(combined[order], prepend=-1))
    for positions in np.split(order, starts[1:]) if len(order) else []:
        yield tuple(int(code[positions[0]]) for code in codes), positions
