"""Which stages of a test are worth their minutes on which unit. Pure, by arrays.

The worth of a set of stages is the harm that it is expected to end, minus a price for each of its minutes. The price is
set to just use the minutes available: with many, everything is tested; with few, what finds most per minute. The
chances of the stages come from the accuracy bench, their minutes from what the unit's model runs; the harm of each
group is this project's choice. A ``cost`` is in minutes, units × ``subsets()``, or one row for all units.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from muster.rules.idle.hazard import Model
from muster.rules.idle.history import GROUPS, Clocks, Flags, Numbers, Whole
from muster_criteria.stages import STAGES

CHANCES = Path(__file__).with_name("chances.json")
"""Made by ``python -m tests.bench.accuracy.chances --write``."""

HARM = np.array([8.0, 8.0, 8.0, 4.0, 64.0, 8.0, 4.0, 8.0, 8.0])
"""Node-hours lost for each hour in which a defect goes unseen: a job of eight nodes waits for the slowest; wrong
results are lost with all that was computed from them."""
SHOWS_AFTER_H = 14 * 24.0
"""Mean time until a hidden defect shows itself in a job. This project's choice: no record says when a defect began."""
ALWAYS = "intake"
"""Takes no load and little time, and tells whether it is the same machine: part of every test."""
GOES_ON_H = 24.0
"""How long a defect that is not found now is assumed to go on; scales the worth of a test. This project's choice."""
PRICE_LEAST = 0.1 / 60.0
"""Node-hours for a minute where minutes are plenty: a tenth of the time that it takes, for power and for jobs that
wait for the node. This project's choice; keeps a stage out of a set that has just passed."""
HALVINGS = 40
"""Bisection steps in the search for the price."""


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """Facts about units: ``hours_since`` (units × stages) each stage last passed, or since the unit came if it never
    did; ``clocks`` of its hazard.
    """

    hours_since: Numbers
    clocks: Clocks

    def pick(self, which: Flags | Whole) -> Facts:
        """Returns the facts of these units."""
        return Facts(self.hours_since[which], self.clocks.pick(which))


@functools.cache
def _table() -> tuple[Numbers, Numbers]:
    """The chances of finding a defect, groups × stages, and the minutes of the stages."""
    made = json.loads(CHANCES.read_text())
    chances = np.array([[made["chances"][group][stage] for stage in STAGES] for group in GROUPS])
    return chances, np.array([made["minutes"][stage] for stage in STAGES])


def chances() -> Numbers:
    """The chance that each stage finds a defect of each group (groups × stages)."""
    return _table()[0]


@functools.cache
def visible() -> dict[str, frozenset[str]]:
    """By group of faults, the stages that can find one."""
    return {
        group: frozenset(stage for stage, chance in zip(STAGES, row, strict=True) if chance > 0.0)
        for group, row in zip(GROUPS, chances(), strict=True)
    }


@functools.cache
def subsets() -> tuple[tuple[str, ...], ...]:
    """Every set of stages that a test may consist of, in the order of the stages; the whole test first."""
    optional = [stage for stage in STAGES if stage != ALWAYS]
    chosen = itertools.chain.from_iterable(
        itertools.combinations(optional, count) for count in range(len(optional), 0, -1)
    )
    return tuple((ALWAYS, *stages) for stages in chosen)


def usual_minutes() -> Numbers:
    """The minutes of each stage in the accuracy bench: used for a unit whose stages are not known."""
    return _table()[1]


def cost_of(minutes: Numbers) -> Numbers:
    """Returns the cost of units with these minutes of the stages (units × stages, or one row for all)."""
    return np.asarray(minutes @ _members().T)


@functools.cache
def _members() -> Numbers:
    """``subsets()`` × stages: 1 where the stage belongs to the set."""
    return np.array([[float(stage in chosen) for stage in STAGES] for chosen in subsets()])


@functools.cache
def found() -> Numbers:
    """The chance that each of ``subsets()`` finds a defect of each group which some stages have missed.

    Shape (2 ** stages, sets, groups); bit n of the first index is set if stage n missed it. A stage misses again what
    it missed before: in the accuracy bench nearly each severity of a fault is found at every visit or at none.
    """
    bits = np.arange(2 ** len(STAGES))[:, None] >> np.arange(len(STAGES)) & 1
    left = chances()[None, :, :] * (1 - bits)[:, None, :]
    return np.asarray(1.0 - np.prod(1.0 - left[:, None, :, :] * _members()[None, :, None, :], axis=3))


def hidden(facts: Facts, model: Model) -> Iterator[tuple[Whole, Numbers]]:
    """Yields, for each period in which defects may have arisen, the stages that have missed them (units; bits as of
    ``found``) and how many hidden ones are expected (units × groups).

    The time since the oldest pass, or since the unit came if a stage never passed, is cut at the passes. What arose in
    a piece is still hidden if no stage that passed since found it and it did not show itself (``SHOWS_AFTER_H``). What
    every stage has missed is left out: no test is expected to find it.
    """
    table = chances()
    order = np.argsort(facts.hours_since, axis=1, kind="stable")
    ages = np.take_along_axis(facts.hours_since, order, axis=1)
    kept = np.ones((len(ages), len(GROUPS)))
    missed = np.zeros(len(ages), dtype=np.int64)
    begin = np.zeros(len(ages))
    rates = _Rates(facts, model)
    for place in range(len(STAGES)):
        end = ages[:, place]
        # ∫ exp(−u/τ) du: hours, of which less counts the longer ago they are.
        still = SHOWS_AFTER_H * (np.exp(-begin / SHOWS_AFTER_H) - np.exp(-end / SHOWS_AFTER_H))
        yield missed, rates.at((begin + end) / 2.0) * kept * still[:, None]
        kept = kept * (1.0 - table.T[order[:, place]])
        missed = missed | 1 << order[:, place]
        begin = end


class _Rates:
    """The hazard of units some hours ago: their clocks are run back, at most to a time before the return."""

    def __init__(self, facts: Facts, model: Model) -> None:
        self._facts, self._model = facts, model
        self._now = model.rates(facts.clocks)
        clocks = facts.clocks
        self._failed = np.flatnonzero(np.isfinite(clocks.since_any) | np.isfinite(clocks.since_swap))

    def at(self, ago: Numbers) -> Numbers:
        """Returns the hazard (units × groups) so many hours ago (units)."""
        if not len(self._failed):
            return self._now
        clocks, then = self._facts.clocks.pick(self._failed), ago[self._failed]
        back = dataclasses.replace(
            clocks, since_any=_back(clocks.since_any, then), since_swap=_back(clocks.since_swap, then),
            since_same=_back(clocks.since_same, then[:, None]),
        )  # fmt: skip
        rates = self._now.copy()
        rates[self._failed] = self._model.rates(back)
        return rates


def _back(hours: Numbers, by: Numbers) -> Numbers:
    """Before its return a unit was like one that failed long ago or never did."""
    return np.where(hours >= by, hours - by, np.inf)


@dataclasses.dataclass(frozen=True, eq=False)
class Worth:
    """Of units: ``suspicion``, the probability of a hidden defect that a whole test can find; ``value`` (units ×
    ``subsets()``), the harm that each set is expected to end, in node-hours. Sets that take too long have -inf.
    """

    suspicion: Numbers
    value: Numbers


def worth(facts: Facts, model: Model, fits: Flags) -> Worth:
    """Returns what each set is worth for each unit; ``fits``: as a cost, whether it is short enough.

    Worth: expected defects that it finds · harm · ``GOES_ON_H``. (Weighing by the hours that a defect has been there
    too, which is best for one unit with a steady hazard, left 1.2 times the hidden defect-hours in the simulated year.)
    """
    value = np.zeros((len(facts.hours_since), len(subsets())))
    count = np.zeros(len(facts.hours_since))
    for missed, expected in hidden(facts, model):
        for stages in np.unique(missed):
            units = np.flatnonzero(missed == stages)
            finds = found()[stages]
            value[units] += (expected[units] * HARM * GOES_ON_H) @ finds.T
            count[units] += expected[units] @ (finds[0] > 0.0)
    return Worth(-np.expm1(-count), np.where(fits, value, -np.inf))


def price(value: Numbers, cost: Numbers, minutes: float) -> float:
    """Returns the least price of a minute, in node-hours, at which the sets worth it take at most ``minutes``."""
    if math.isinf(minutes) or not len(value):
        return PRICE_LEAST
    cost = np.broadcast_to(cost, value.shape)
    # Only units that can be among those tested matter: each test takes at least the shortest set's minutes.
    best = (value / cost).max(axis=1)
    most = math.ceil(minutes / cost.min()) + 1
    if len(best) > most:
        some = np.argpartition(-best, most)[:most]
        value, cost = value[some], cost[some]
    low, high = PRICE_LEAST, float(max(best.max() * (1.0 + 1e-9), PRICE_LEAST))
    if _demand(value, cost, low) <= minutes:
        return PRICE_LEAST
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _demand(value, cost, middle) > minutes else (low, middle)
    return high


def _demand(value: Numbers, cost: Numbers, at: float) -> float:
    net = value - at * cost
    wanted = net.max(axis=1) > 0.0
    return float(_each(cost, net.argmax(axis=1))[wanted].sum())


def _each(table: Numbers, chosen: Whole) -> Numbers:
    """Of each row the value that was chosen."""
    return np.asarray(np.take_along_axis(table, chosen[:, None], axis=1)[:, 0])


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """Who comes when: ``order`` of units, and by unit the set of stages (an index into ``subsets()``) that it takes.
    ``late``: by unit, whether it comes because its whole test is overdue.
    """

    order: Whole
    stages: Whole
    late: Flags


def in_turn(
    value: Numbers,
    cost: Numbers,
    oldest_h: Numbers,
    overdue: Flags,
    minutes: float,
    *,
    again: Flags | None = None,
    under_way: tuple[float, float] = (0.0, 0.0),
    by_slots: bool = False,
) -> Turn:
    """Returns the order in which units are tested if ``minutes`` are available, without those that are not overdue and
    have no set that fits.

    Two lines take turns: the overdue with the whole test, the longest untested first, and all by what their best set is
    worth beyond its price (those to test ``again`` first). Neither has begun more minutes than the other by more than
    one test, so that the overdue take at most half while the others want the rest; ``under_way``: what each has begun
    already. ``by_slots``: a test counts as one, whatever its minutes, as where slots are what is short.
    """
    cost, whole = np.broadcast_to(cost, value.shape), 0
    late = np.flatnonzero(overdue)
    late = late[np.argsort(-oldest_h[late], kind="stable")]
    rest = minutes - min(minutes / 2.0, float(cost[late, whole].sum())) if math.isfinite(minutes) else minutes
    at = price(value, cost, rest)
    net = value - at * cost
    best = net.argmax(axis=1)
    beyond = _each(net, best)
    # A unit with no set worth its price takes the set that is worth most per minute.
    low = beyond <= 0.0
    best[low] = (value[low] / cost[low]).argmax(axis=1)
    beyond[low] = _each(net[low], best[low])
    first = np.zeros(len(value), dtype=np.bool_) if again is None else again
    line = np.lexsort((-beyond, ~first))
    line = line[np.isfinite(beyond[line])]
    costs, of_whole = (np.ones(len(value)),) * 2 if by_slots else (_each(cost, best), cost[:, whole])
    order, is_late = _merged(late.tolist(), line.tolist(), costs.tolist(), of_whole.tolist(), under_way)
    return Turn(np.array(order, dtype=np.int64), np.where(is_late, whole, best), is_late)


def _merged(
    late: list[int], line: list[int], costs: list[float], whole: list[float], under_way: tuple[float, float]
) -> tuple[list[int], Flags]:
    """Returns the units of both lines in their order, each once, and by unit whether it came as one of the late."""
    order: list[int] = []
    is_late, taken = np.zeros(len(costs), dtype=np.bool_), [False] * len(costs)
    of_late, of_line = under_way
    waiting, others = iter(late), iter(line)
    oldest, best = next(waiting, None), next(others, None)
    while oldest is not None or best is not None:
        if oldest is not None and taken[oldest]:
            oldest = next(waiting, None)
        elif best is not None and taken[best]:
            best = next(others, None)
        elif oldest is not None and (best is None or of_late <= of_line):
            order.append(oldest)
            taken[oldest] = is_late[oldest] = True
            of_late += whole[oldest]
        elif best is not None:
            order.append(best)
            taken[best] = True
            of_line += costs[best]
    return order, is_late
