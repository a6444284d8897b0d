"""How likely each unit breaks in the next hour, by group of defects. Pure, by arrays.

hazard = base rate of the group · factors, as in a proportional hazards model. The factors are those that public
records of faults show together (``priors.json``; each record's own, with interval and source, are in
tests/bench/traces/evidence.json); each is estimated again from the fleet's own history, for which the records are a
prior: gamma for a rate or a factor, so that few events change little.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from muster.rules.idle.history import GROUPS, NEIGHBOURS_MAX, Clocks, History, Numbers, Whole, segments

PRIORS = Path(__file__).with_name("priors.json")
"""Made by ``python -m tests.bench.traces.priors --data FOLDER --write``."""

EDGES_D = (1.0, 3.0, 7.0, 14.0, 30.0, 60.0, 90.0, 180.0)
"""Days since a return at which its factor changes; after the last it is that of a unit that failed long ago."""
EDGES_H = tuple(24.0 * day for day in EDGES_D)
BINS = len(EDGES_D) + 2
"""The bins of a clock: between the edges, longer ago, never."""
SWAP_EDGES_H = (90 * 24.0,)
SWAPS = len(SWAP_EDGES_H) + 2
MEMORY_H = 180 * 24.0
"""The weight of the fleet's own past falls to 1/e in this many hours: parts wear out, batches are replaced. With half
of the year before, the risk of Titan's GPUs, which rose a hundredfold in two years, is predicted too low by a fifth."""
LABEL_STRENGTH = 6.0
"""The strength, in events, of the prior that a batch or place is like the others. Chosen on the public records: with 2,
the worst batches of one are predicted a third too high, since three kinds of label share what is seen."""
SWEEPS, SWEEPS_ON = 8, 2
STEPS = (0.35, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0, 32.0)
"""Multiples of the usual risk: edges of the bins in which predictions are compared with what happened."""
OUTER = 0.25, 48.0
"""The multiples that represent the first and the last of these bins."""
COMPARED_H = 365 * 24.0
"""Predictions are compared with what happened over about this time; older ones weigh less than 1/e."""
SLOPE_STRENGTH, SLOPE_LEAST = 8.0, -0.5
"""The prior of the slope: 0, with a standard deviation of 1/√8. Its least value: a fault that strikes a part of the
fleet in one day strikes mostly what never failed, and below -1 the nodes at most risk would be tested last."""
SLOPE_FIT = 20
"""Newton steps, far more than are needed."""
LEVEL_STRENGTH = 30.0
"""The strength, in events, of the prior that the predictions were right: faults come in bursts."""
LEVEL_H = 30 * 24.0
"""The level of risk of the whole fleet follows what happened in about this time."""
REMAINED_STRENGTH = 100.0
"""The strength, in events, of the prior that predictions with that level are right. The remaining error is corrected
from ``COMPARED_H`` of predictions: without it, the risk of Titan's GPUs, which rose for years, is predicted a tenth too
low."""


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """``base``: faults an hour, by group. Factors: ``since_any`` by bin, ``since_same`` by group and bin,
    ``since_swap`` by bin, ``neighbours`` by count, ``labels`` for each kind by value. Each risk is multiplied by
    ``level`` and by (risk over the usual one) to the power of ``slope``: factors that multiply promise too much at the
    ends.
    """

    base: Numbers
    since_any: Numbers
    since_same: Numbers
    since_swap: Numbers
    neighbours: Numbers
    labels: tuple[Numbers, ...] = ()
    level: float = 1.0
    slope: float = 0.0

    def rates(self, clocks: Clocks) -> Numbers:
        """Returns the hazard (rows × groups), in faults an hour."""
        return self.at(cells(clocks))

    def at(self, cell: Cells) -> Numbers:
        """Returns the hazard (cells × groups), in faults an hour."""
        rates = self.predicted(cell)
        if self.slope == 0.0:
            return rates * self.level
        return np.asarray(rates * (self.level * self.times(rates) ** self.slope)[:, None])

    def times(self, rates: Numbers) -> Numbers:
        """Returns how many times the usual risk each row has, before ``level`` and ``slope``."""
        return np.asarray(rates.sum(axis=1) / self.base.sum())

    def predicted(self, cell: Cells) -> Numbers:
        """Returns the hazard (cells × groups) before ``level`` and ``slope``."""
        common = self.since_any[cell.since_any] * self.since_swap[cell.since_swap] * self.neighbours[cell.neighbours]
        for kind, ratios in enumerate(self.labels):
            common = common * _of_label(ratios, cell.labels[:, kind])
        groups = np.arange(len(GROUPS))
        return np.asarray(self.base * self.since_same[groups, cell.since_same] * common[:, None])


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """The place of each row in the tables of ``Model``."""

    since_any: Whole
    since_same: Whole
    since_swap: Whole
    neighbours: Whole
    labels: Whole

    def columns(self) -> Whole:
        """Returns all places as one array (rows × columns), to compare rows."""
        return np.column_stack([self.since_any, self.since_same, self.since_swap, self.neighbours, self.labels])

    @classmethod
    def of_columns(cls, columns: Whole) -> Cells:
        """The reverse of ``columns``."""
        groups = len(GROUPS)
        return cls(
            columns[:, 0], columns[:, 1 : 1 + groups], columns[:, 1 + groups], columns[:, 2 + groups],
            columns[:, 3 + groups :],
        )  # fmt: skip


def cells(clocks: Clocks) -> Cells:
    """Returns the place of each row in the tables."""
    swap = _binned(clocks.since_swap, SWAP_EDGES_H)
    of_part = _binned(clocks.since_any, EDGES_H), _binned(clocks.since_same, EDGES_H)
    return Cells(*of_part, swap, clocks.neighbours, clocks.labels)


def _binned(hours: Numbers, edges: tuple[float, ...]) -> Whole:
    bins = np.searchsorted(np.asarray(edges), hours, side="right")
    return np.where(np.isinf(hours), len(edges) + 1, bins)


def _of_label(ratios: Numbers, values: Whole) -> Numbers:
    known = (values >= 0) & (values < len(ratios))
    return np.where(known, ratios[np.where(known, values, 0)] if len(ratios) else 1.0, 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Tally:
    """A history summed up: the hours in service of each cell, and its faults by group."""

    cells: Cells
    hours: Numbers
    faults: Numbers

    def __add__(self, other: Tally) -> Tally:
        columns = np.concatenate([self.cells.columns(), other.cells.columns()])
        return _grouped(columns, np.concatenate([self.hours, other.hours]), np.concatenate([self.faults, other.faults]))

    def aged(self, hours: float) -> Tally:
        """Returns the tally with the weight that it has ``hours`` later (``MEMORY_H``)."""
        weight = np.exp(-hours / MEMORY_H)
        return Tally(self.cells, self.hours * weight, self.faults * weight)


def _summed(place: Whole, values: Numbers, size: int) -> Numbers:
    """The sum of the values of each place."""
    return np.bincount(place, values, size).astype(np.float64)


def _grouped(columns: Whole, hours: Numbers, faults: Numbers) -> Tally:
    _, first, place = np.unique(_keys(columns), return_index=True, return_inverse=True)
    summed = np.zeros((len(first), len(GROUPS)))
    struck = np.flatnonzero(faults.any(axis=1))  # few: most rows are hours in service
    np.add.at(summed, place[struck], faults[struck])
    return Tally(Cells.of_columns(columns[first]), _summed(place, hours, len(first)), summed)


_KEY_MAX = 2**62


def _keys(columns: Whole) -> Whole:
    """Returns one number for each row, the same only for equal rows: each column is a digit.

    Numbers sort far faster than rows. Where the digits would not fit into 64 bits, the keys so far are renumbered.
    """
    keys, size = np.zeros(len(columns), dtype=np.int64), 1
    for column in columns.T if len(columns) else ():
        digit, values = column - column.min(), int(column.max()) - int(column.min()) + 1
        if size * values > _KEY_MAX:
            digit, keys = (np.unique(each, return_inverse=True)[1] for each in (column, keys))
            values, size = int(digit.max()) + 1, int(keys.max()) + 1
        keys, size = keys * values + digit, size * values
    return keys


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """A history cut into pieces in which no clock changes its bin: clocks, ``hours`` in service, ``faults`` (rows ×
    groups), ``unit``, ``begin`` (hours). The faults themselves are rows without hours.
    """

    clocks: Clocks
    hours: Numbers
    faults: Numbers
    unit: Whole
    begin: Numbers

    def between(self, begin: float, end: float) -> Pieces:
        """Returns the pieces that begin between these hours, both of which must be cuts."""
        first, last = np.searchsorted(self.begin, (begin, end), side="left")
        here = slice(int(first), int(last))
        return Pieces(self.clocks.pick(here), self.hours[here], self.faults[here], self.unit[here], self.begin[here])

    def tally(self) -> Tally:
        """Returns the pieces summed up by cell."""
        return _grouped(cells(self.clocks).columns(), self.hours, self.faults)


def pieces(history: History, cuts: Numbers) -> Pieces:
    """Returns the history in pieces, sorted by begin; it is also cut at ``cuts`` (hours)."""
    unit, start, stop = segments(history, EDGES_H, cuts)
    faults = history.faults
    struck = np.maximum(faults.at - 1e-3, 0.0)
    units, begin = np.concatenate([unit, faults.unit]), np.concatenate([start, struck])
    counts = np.zeros((len(units), len(GROUPS)))
    counts[len(unit) + np.arange(len(faults)), faults.group] = 1.0
    order = np.argsort(begin, kind="stable")
    clocks = history.clocks(units[order], np.concatenate([(start + stop) / 2.0, struck])[order])
    hours = np.concatenate([stop - start, np.zeros(len(faults))])
    return Pieces(clocks, hours[order], counts[order], units[order], begin[order])


@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """The model before the fleet's own history, and the ``strength`` of each of its values, in events."""

    model: Model
    strength: Model


def learned(prior: Prior, seen: Tally, start: Model | None = None) -> Model:
    """Returns the model after the fleet's own history, from ``start`` where it is known.

    Each factor in turn is (a + faults)/(a/prior + expected), the mean of its gamma posterior given the others, a few
    times over: iterative proportional fitting with shrinkage.
    """
    kinds = seen.cells.labels.shape[1]
    sizes = [int(seen.cells.labels[:, kind].max(initial=-1)) + 1 for kind in range(kinds)]
    labels = [np.ones(size) for size in sizes]
    for ratios, before in zip(labels, start.labels if start else (), strict=False):
        ratios[: len(before)] = before[: len(ratios)]
    model = dataclasses.replace(start or prior.model, labels=tuple(labels), level=1.0, slope=0.0)
    groups = np.arange(len(GROUPS))
    cell, faults = seen.cells, seen.faults
    for _ in range(SWEEPS if start is None else SWEEPS_ON):
        expected = model.at(cell) * seen.hours[:, None]
        base = _posterior(prior.strength.base, prior.model.base, model.base, faults.sum(axis=0), expected.sum(axis=0))
        model = dataclasses.replace(model, base=base)
        for name, size in (("since_any", BINS), ("since_swap", SWAPS), ("neighbours", NEIGHBOURS_MAX + 1)):
            expected = (model.at(cell) * seen.hours[:, None]).sum(axis=1)
            of = getattr(cell, name)
            strength, usual, now = (getattr(each, name) for each in (prior.strength, prior.model, model))
            came = _summed(of, faults.sum(axis=1), size)
            factor = {name: _posterior(strength, usual, now, came, _summed(of, expected, size))}
            model = dataclasses.replace(model, **factor)  # type: ignore[arg-type]
        expected = model.at(cell) * seen.hours[:, None]
        of_groups = [np.zeros((len(GROUPS), BINS)) for _ in range(2)]
        for table, values in zip(of_groups, (faults, expected), strict=True):
            np.add.at(table, (np.broadcast_to(groups, values.shape), cell.since_same), values)
        same = _posterior(prior.strength.since_same, prior.model.since_same, model.since_same, *of_groups)
        model = dataclasses.replace(model, since_same=same)
        model = _labels_learned(model, seen)
    return model


def followed(history: History, prior: Prior, cuts: Numbers) -> tuple[list[Model], Pieces]:
    """Returns the model as of each of ``cuts`` (hours, the first is the begin), learned from what was known then, and
    the history in pieces.

    Each time, the previous model's predictions are compared with what happened: by predicted risk (``slope``), lately
    (``level``), as parts wear out, and, once something was learned, over a year for the error that remains.
    """
    whole = pieces(history, cuts)
    seen = late = whole.between(0.0, 0.0).tally()
    model = learned(prior, seen)
    found = [model]
    came, due = np.zeros(len(STEPS) + 1), np.zeros(len(STEPS) + 1)
    happened = promised = 0.0
    for begin, end in itertools.pairwise(cuts.tolist()):
        now = whole.between(begin, end).tally()
        predicted, past = model.predicted(now.cells), end - begin
        kept = float(np.exp(-past / COMPARED_H))
        if len(found) > 1:  # the first is what other fleets' records say
            happened = happened * kept + float(now.faults.sum())
            promised = promised * kept + float((model.at(now.cells).sum(axis=1) * now.hours).sum())
        step = np.searchsorted(np.asarray(STEPS), model.times(predicted), side="right")
        expected = predicted.sum(axis=1) * now.hours
        # Only how the faults were spread counts here: how many there were, the base rates and the level follow.
        share = now.faults.sum() / max(float(expected.sum()), 1e-9)
        came = came * kept + _summed(step, now.faults.sum(axis=1), len(came))
        due = due * kept + _summed(step, expected * share, len(due))
        seen, late = seen.aged(past) + now, late.aged(past * MEMORY_H / LEVEL_H) + now
        model = learned(prior, seen, model)
        level, slope = _recalibrated(came, due)
        model = dataclasses.replace(model, level=level, slope=slope)
        expected = model.at(late.cells).sum(axis=1) * late.hours
        of_late = float((LEVEL_STRENGTH + late.faults.sum()) / (LEVEL_STRENGTH + expected.sum()))
        model = dataclasses.replace(model, level=level * of_late)
        remained = (REMAINED_STRENGTH + happened) / (REMAINED_STRENGTH + promised)
        found.append(dataclasses.replace(model, level=model.level * remained))
    return found, whole


def _recalibrated(came: Numbers, due: Numbers) -> tuple[float, float]:
    """Returns level and slope of what came over what was due, by step: the most likely of a Poisson regression on the
    logarithm of the risk (Cox's recalibration, 1958), with a normal prior for the slope.
    """
    edges = np.asarray(STEPS)
    risk = np.log(np.concatenate([OUTER[:1], np.sqrt(edges[1:] * edges[:-1]), OUTER[1:]]))
    found = np.zeros(2)  # logarithm of the level, slope
    for _ in range(SLOPE_FIT):
        expected = due * np.exp(found[0] + found[1] * risk)
        beyond = came - expected
        gradient = np.array([beyond.sum(), (beyond * risk).sum() - SLOPE_STRENGTH * found[1]])
        mixed = (expected * risk).sum()
        curvature = np.array([[expected.sum() + 1e-6, mixed], [mixed, (expected * risk**2).sum() + SLOPE_STRENGTH]])
        found = found + np.linalg.solve(curvature, gradient)
    if found[1] < SLOPE_LEAST:  # then with the level that is the most likely with this slope
        found = np.array([np.log(came.sum() / (due * np.exp(SLOPE_LEAST * risk)).sum()), SLOPE_LEAST])
    return float(np.exp(found[0])), float(found[1])


def _labels_learned(model: Model, seen: Tally) -> Model:
    for kind, ratios in enumerate(model.labels):
        values = seen.cells.labels[:, kind]
        known = values >= 0
        expected = (model.at(seen.cells) * seen.hours[:, None]).sum(axis=1)
        counted = [_summed(values[known], each[known], len(ratios)) for each in (seen.faults.sum(axis=1), expected)]
        ones = np.ones(len(ratios))
        labels = list(model.labels)
        labels[kind] = _posterior(ones * LABEL_STRENGTH, ones, ratios, *counted)
        model = dataclasses.replace(model, labels=tuple(labels))
    return model


def _posterior(strength: Numbers, prior: Numbers, now: Numbers, faults: Numbers, expected: Numbers) -> Numbers:
    """The gamma posterior's mean; ``expected`` uses the factor ``now``. With infinite strength, the prior stays."""
    fixed = np.isinf(strength)
    weight = np.where(fixed, 1.0, strength)
    return np.where(fixed, prior, (weight + faults) / (weight / prior + expected / now))


@functools.cache
def public_prior() -> Prior:
    """Returns the prior pooled from the public records."""
    pooled = json.loads(PRIORS.read_text())
    return Prior(_model(pooled["model"]), _model(pooled["strength"]))


def _model(written: dict[str, Any]) -> Model:
    tables: dict[str, Any] = {name: np.array(values) for name, values in written.items()}
    return Model(**tables)
