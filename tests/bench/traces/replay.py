"""Replays one record: the planner and simple rules test the same units in the same idle hours with the same minutes.

Hidden times are drawn: a fault of the record was there for an exponential time before it hit, with a mean drawn for
each seed between ``LEADS_H`` (uniform on the logarithm), but not before the unit came or last returned. A test finds it
with chances that are drawn around those that the planner uses (``chances.json``). Each seed draws ``PLACES_MAX`` places
of a larger record, and the planner knows what happened at all of them. What no stage can find, as faults of boards, is
left out of the figures and known to the planner all the same. Faults that are caught hit no more; what is known of a
unit is what the record says, so all strategies know the same.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from muster.rules.idle import hazard, worth
from muster.rules.idle.history import Faults, Flags, History, Numbers, Whole
from tests.bench.revalidation import true_chances
from tests.bench.traces import priors
from tests.bench.traces.records import Record

STEP_H = 12.0
"""A quarter of the shortest mean time that a fault is hidden: with longer steps, in each of which a unit takes one test
at most, no rule could test some units more often than others."""
PLACES_MAX = 500
"""At each sits one unit at a time. As many as a mid-sized cluster has; more cost time and change no ratio."""
WINDOW_H = 2.0
IDLE_SHARE = 0.12
"""Of the units in any ``WINDOW_H``; in a longer step it is a unit's chance to be idle at some time of it."""
IDLE_MINUTES = 45.0
COST = worth.cost_of(worth.usual_minutes())
LEADS_H = (48.0, 720.0)
REST_H = 4.0
"""A unit is not tested again so soon after a whole test."""
WHOLE_AFTER_H = 28 * 24.0
WARM_UP = 0.2
"""Of the record's time, in which the planner only learns: nothing is tested or counted."""
RELEARN_H = 14 * 24.0
RULES = ("stalest", "random", "last_fault_first")
STRATEGIES = (*RULES, "planner", "oracle")
"""``oracle`` knows the defects: whole tests of the units that have one, the longest hidden first."""


@dataclasses.dataclass
class _Hidden:
    """Of one seed and strategy: which fault was caught, and when each stage of each unit passed last."""

    passed_at: Numbers
    caught_at: Numbers
    minutes: float = 0.0
    scored: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """By strategy: ``hours`` hidden, ``harm`` (node-hours lost meanwhile), share of faults ``caught``, ``minutes``.
    ``scored``: minutes of the planner's tests that its score decided, not that a whole test was overdue.
    """

    hours: dict[str, float]
    harm: dict[str, float]
    caught: dict[str, float]
    minutes: dict[str, float]
    scored: float


@dataclasses.dataclass(frozen=True, eq=False)
class Followed:
    """A record, and by ``cuts`` (hours) what was learned of the whole of it by then, with priors of other records."""

    record: Record
    history: History
    cuts: Numbers
    models: list[hazard.Model]
    pieces: hazard.Pieces


def follow(record: Record) -> Followed:
    """Returns what was known of the record at each time."""
    history, cuts = History(record.units, record.faults), _cuts(record.hours)
    prior = priors.pool(json.loads(priors.EVIDENCE.read_text()), without=record.family)
    return Followed(record, history, cuts, *hazard.followed(history, prior, cuts))


def _cuts(hours: float) -> Numbers:
    early = [0.0, *(24.0 * 2.0**each for each in range(4))]  # sooner at first, when each fault says much
    return np.array([each for each in early if each < hours] + list(np.arange(RELEARN_H, hours, RELEARN_H)))


def replay(known: Followed, seeds: list[int], share: float) -> list[Outcome]:
    """Returns what each strategy would have caught, by seed; ``share`` of the units may be under test at a time."""
    record = known.record
    begin = WARM_UP * record.hours
    visible = (worth.chances().max(axis=1) > 0.0)[record.faults.group] & (record.faults.at >= begin)
    since = _since_back(record, record.faults)
    found = []
    for seed in seeds:
        drawn = _drawn(record, seed)
        there = np.flatnonzero(visible & drawn[record.faults.unit])
        run = _Seed(record, record.faults.pick(there), since[there], seed)
        units = np.flatnonzero(drawn)
        for now in np.arange(begin, record.hours, STEP_H):
            model = known.models[int(np.searchsorted(known.cuts, now, side="right")) - 1]
            here = units[(record.units.start[units] <= now) & (record.units.end[units] > now)]
            here = here[~known.history.down(here, np.full(len(here), now))]
            if len(here):
                run.step(now, here, known.history, model, share)
        found.append(run.outcome(begin))
    return found


def _drawn(record: Record, seed: int) -> Flags:
    """Returns which units sit at the places that this seed draws."""
    places = np.unique(record.units.place)
    kept = np.random.default_rng([seed, 3]).choice(places, min(len(places), PLACES_MAX), replace=False)
    return np.isin(record.units.place, kept)


def _since_back(record: Record, faults: Faults) -> Numbers:
    """By fault, the hour since which its unit served: it came, or came back, then."""
    since = record.units.start[faults.unit].copy()
    for place in np.lexsort((record.faults.at, record.faults.unit)).tolist():
        later = (faults.unit == record.faults.unit[place]) & (faults.at > record.faults.at[place])
        back = record.faults.back[place]
        since[later & (faults.at >= back)] = np.maximum(since[later & (faults.at >= back)], back)
    return since


class _Seed:
    """One drawing of hidden times, idle units and luck of the tests, and how each strategy fares with it."""

    def __init__(self, record: Record, faults: Faults, since: Numbers, seed: int) -> None:
        self.faults, self.units = faults, record.units
        draw = np.random.default_rng(seed)
        mean = float(np.exp(draw.uniform(*np.log(LEADS_H))))
        self.arose = np.maximum(faults.at - draw.exponential(mean, len(faults)), since)
        self.shuffling = np.random.default_rng([seed, 1])
        # A stage misses a fault again that it missed.
        self.luck = np.random.default_rng([seed, 3]).random((len(faults), len(worth.STAGES)))
        self.chances = true_chances(np.random.default_rng([seed, 4]))
        self.idling = np.random.default_rng([seed, 2])
        self.allowed = 0.0
        spread = draw.uniform(0.0, 7 * 24.0, len(record.units))
        self.fates = {
            name: _Hidden((-spread)[:, None] * np.ones(len(worth.STAGES)), np.full(len(faults), np.inf))
            for name in STRATEGIES
        }

    def step(self, now: float, here: Whole, history: History, model: hazard.Model, share: float) -> None:
        """Let each strategy test units that are idle in this step."""
        chance = 1.0 - (1.0 - IDLE_SHARE) ** (STEP_H / WINDOW_H)
        idle = np.flatnonzero(self.idling.random(len(here)) < chance)
        clocks = history.clocks(here[idle], np.full(len(idle), now))
        shuffled = self.shuffling.permutation(len(idle))
        self.allowed += share * len(here) * STEP_H * 60.0
        least = self.allowed
        for name, fate in self.fates.items():
            # What is left over is used in the next step; the planner never has more than the least of the rules used.
            usable = self.allowed if name in RULES else least
            left = min(usable - fate.minutes, 2.0 * share * len(here) * STEP_H * 60.0)
            began = np.maximum(fate.passed_at[here[idle]], self.units.start[here[idle], None])
            came = np.maximum(fate.passed_at[here[idle]], _returned(now, clocks.since_any)[:, None])
            hours = now - np.maximum(began, came)
            free = hours.min(axis=1) >= REST_H
            places, since, seen = idle[free], hours[free], clocks.pick(free)
            stages, late = np.zeros(len(places), dtype=np.int64), np.ones(len(places), dtype=np.bool_)
            if name == "planner":
                facts = worth.Facts(since, seen)
                value = worth.worth(facts, model, COST <= IDLE_MINUTES).value
                oldest = since.max(axis=1)
                turn = worth.in_turn(value, COST, oldest, oldest >= WHOLE_AFTER_H, left)
                order, stages, late = turn.order, turn.stages, turn.late
            elif name == "stalest":
                order = np.argsort(-since.max(axis=1), kind="stable")
            elif name == "random":
                order = np.argsort(shuffled[free], kind="stable")
            elif name == "last_fault_first":
                order = np.lexsort((-since.max(axis=1), seen.since_any))
            else:
                order = self._known(now, here[places], fate)
            took = self._test(now, here, places[order], stages[order], left, fate)
            fate.scored += float(COST[stages[order[:took]]][~late[order[:took]]].sum())
            if name in RULES:
                least = min(least, fate.minutes)

    def _known(self, now: float, units: Whole, fate: _Hidden) -> Whole:
        there = (self.arose <= now) & (self.faults.at > now) & np.isinf(fate.caught_at)
        since = np.full(len(self.units), np.inf)
        np.minimum.at(since, self.faults.unit[there], self.arose[there])
        order = np.argsort(since[units], kind="stable")
        return order[np.isfinite(since[units[order]])]

    def _test(self, now: float, here: Whole, places: Whole, stages: Whole, minutes: float, fate: _Hidden) -> int:
        cost = COST[stages]
        took = int(np.searchsorted(np.cumsum(cost), minutes, side="right"))
        fate.minutes += float(cost[:took].sum())
        units, members = here[places[:took]], worth._members()[stages[:took]] > 0.0
        fate.passed_at[units] = np.where(members, now, fate.passed_at[units])
        place_of = dict(zip(units.tolist(), range(took), strict=True))
        there = (self.arose <= now) & (now < self.faults.at) & np.isinf(fate.caught_at)
        for fault in np.flatnonzero(there).tolist():
            at = place_of.get(int(self.faults.unit[fault]))
            if at is None:
                continue
            if (members[at] & (self.luck[fault] < self.chances[self.faults.group[fault]])).any():
                fate.caught_at[fault] = now
        return took

    def outcome(self, begin: float) -> Outcome:
        """Returns the figures of all strategies, from hour ``begin`` on."""
        arose = np.maximum(self.arose, begin)
        hidden = {name: np.minimum(fate.caught_at, self.faults.at) - arose for name, fate in self.fates.items()}
        weight = worth.HARM[self.faults.group]
        return Outcome(
            {name: float(each.sum()) for name, each in hidden.items()},
            {name: float((each * weight).sum()) for name, each in hidden.items()},
            {name: float(np.isfinite(fate.caught_at).mean()) for name, fate in self.fates.items()},
            {name: fate.minutes for name, fate in self.fates.items()},
            self.fates["planner"].scored,
        )


def _returned(now: float, since: Numbers) -> Numbers:
    """When each unit came back and was tested as a new one is; long ago without a fault."""
    return np.where(np.isinf(since), -np.inf, now - since)


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """By tenth of what was expected, from the units at least risk on: expected and observed faults, and their ratio
    with a 95 % interval (units drawn again with replacement).
    """

    expected: Numbers
    observed: Numbers
    low: Numbers
    high: Numbers

    def ratios(self) -> Numbers:
        """Returns observed over expected."""
        return self.observed / self.expected


TENTHS = 10
RESAMPLED = 400


def calibration(known: Followed, seed: int) -> Calibration:
    """Returns how many faults happened to units of each tenth of risk, as predicted from what was known before."""
    record, cuts, learned, pieces = known.record, known.cuts, known.models, known.pieces
    ends = np.append(cuts[1:], record.hours)
    risk, expected, observed, owner = [], [], [], []
    for model, begin, end in zip(learned, cuts, ends, strict=True):
        if end <= WARM_UP * record.hours:
            continue
        now = pieces.between(float(begin), float(end))
        rate = model.rates(now.clocks).sum(axis=1)
        risk.append(rate)
        expected.append(rate * now.hours)
        observed.append(now.faults.sum(axis=1))
        owner.append(now.unit)
    rate, due, came, of = (np.concatenate(each) for each in (risk, expected, observed, owner))
    order = np.argsort(rate, kind="stable")
    tenth = np.empty(len(rate), dtype=np.int64)
    tenth[order] = np.minimum((np.cumsum(due[order]) / due.sum() * TENTHS).astype(np.int64), TENTHS - 1)
    units = len(record.units)
    by_unit = [np.zeros((units, TENTHS)) for _ in range(2)]
    for table, values in zip(by_unit, (due, came), strict=True):
        np.add.at(table, (of, tenth), values)
    draw = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLED):
        weight = np.bincount(draw.integers(0, units, units), minlength=units)
        drawn.append((weight @ by_unit[1]) / np.maximum(weight @ by_unit[0], 1e-12))
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    return Calibration(by_unit[0].sum(axis=0), by_unit[1].sum(axis=0), low, high)
