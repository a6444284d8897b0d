"""Trials by the thousand: fleets drawn, judged by Muster and by the baselines, and counted row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tests.bench.accuracy.baselines import Limits, baselines
from tests.bench.accuracy.counting import Count
from tests.bench.accuracy.devices import Hall
from tests.bench.accuracy.fleet import (
    CELLS,
    EARLIER_VISITS,
    FLEET_NODES,
    HEALTHY,
    Cell,
    Trials,
    draw_fleet,
    draw_trials,
)
from tests.bench.accuracy.physics import Readings
from tests.bench.accuracy.stored_limits import Table
from tests.bench.accuracy.verdicts import Flags, Verdicts, shows

VISITS = ("first", "later")
"""First: no earlier visits. Later: three visits behind it, healthy at all of them."""

MUSTER = "Muster"

Judge = Callable[[Trials], Verdicts]
NewJudge = Callable[[Trials], Judge]
"""Makes the judge under test from the fleet that its trials are to be compared with."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Numbers of trials of each class and severity, of healthy nodes (both for each kind of visit), and of fleets.

    One fleet's tails may be longer or shorter than they should be by chance, Muster's as much as the baselines', and
    no number of trials against it shows that: hence several fleets.

    ``tuning``: further healthy nodes for each kind of visit, of which Muster fails some; its false fails count those
    too. The baselines get the stored limits that fail the same share of healthy nodes.
    """

    trials: int = 1000
    healthy: int = 20_000
    tuning: int = 80_000
    fleets: int = 8
    fleet_nodes: int = FLEET_NODES

    def shared(self, number: int) -> int:
        """What one of the fleets has of this many; all together have no fewer."""
        return -(-number // self.fleets)


@dataclasses.dataclass(frozen=True)
class Row:
    """One class at one severity, at one kind of visit; healthy nodes where it has no fault.

    ``shown``: nodes failed among those in which a discrete fault showed at all. ``located``: of the nodes failed, those
    of which no GPU was named but the faulty. ``warned``: nodes not failed, with a finding.
    ``retested``: nodes measured once more. ``minutes``: of load until the fault was known, all nodes failed together.
    ``by_fleet``: nodes failed by Muster (``MUSTER``) and by each baseline, of each fleet.
    """

    cell: Cell
    visit: str
    shown: Count
    located: Count
    warned: Count
    retested: Count
    minutes: float
    by_fleet: Mapping[str, tuple[Count, ...]]

    @property
    def found(self) -> Count:
        """Nodes that Muster failed."""
        return sum(self.by_fleet[MUSTER], Count())

    @property
    def others(self) -> dict[str, Count]:
        """Nodes that each baseline failed."""
        return {name: sum(counts, Count()) for name, counts in self.by_fleet.items() if name != MUSTER}

    @property
    def mean_minutes(self) -> float:
        """Minutes of load until the fault was known, on average; NaN where none was found."""
        return self.minutes / self.found.hits if self.found.hits else float("nan")

    def __add__(self, other: Row) -> Row:
        if (self.cell, self.visit) != (other.cell, other.visit):
            raise ValueError("only counts of one cell and visit add up")
        return Row(
            self.cell,
            self.visit,
            self.shown + other.shown,
            self.located + other.located,
            self.warned + other.warned,
            self.retested + other.retested,
            self.minutes + other.minutes,
            {name: (*counts, *other.by_fleet[name]) for name, counts in self.by_fleet.items()},
        )


@dataclasses.dataclass(frozen=True)
class _Compared:
    """What trials are compared with: a fleet's latest readings, and the judge with its figures of it."""

    hall: Hall
    readings: Readings
    judge: Judge


def evaluate(seed: int, size: Size, new_judge: NewJudge, cells: Sequence[Cell] = CELLS) -> list[Row]:
    """All rows, healthy nodes first. The same seed and size give the same trials."""
    table = Table.load()
    rngs = [np.random.default_rng([seed, number]) for number in range(size.fleets)]
    fleets = [_fleet(rng, size, new_judge) for rng in rngs]
    lot = size.shared(size.tuning)
    false_fails = {}
    for visit in VISITS:
        false_fails[visit] = tuple(
            Count(_failed(rng, fleet, lot, visit), lot) for rng, fleet in zip(rngs, fleets, strict=True)
        )
    total: dict[tuple[Cell, str], Row] = {}
    for rng, fleet in zip(rngs, fleets, strict=True):
        for visit, by_fleet in false_fails.items():
            failed = sum(by_fleet, Count())
            limits = table.at(max(failed.hits, 1) / failed.of)
            for row in _against(rng, size, fleet, visit, limits, cells):
                key = (row.cell, row.visit)
                total[key] = total[key] + row if key in total else row
    return [_with_tuning(row, false_fails) for row in total.values()]


def _with_tuning(row: Row, false_fails: Mapping[str, tuple[Count, ...]]) -> Row:
    """Of healthy nodes, those that the baselines were tuned by count too: the judge failed them in the same way."""
    if row.cell != HEALTHY:
        return row
    of = tuple(one + more for one, more in zip(row.by_fleet[MUSTER], false_fails[row.visit], strict=True))
    return dataclasses.replace(row, by_fleet={**row.by_fleet, MUSTER: of})


def _fleet(rng: np.random.Generator, size: Size, new_judge: NewJudge) -> _Compared:
    hall = Hall.draw(rng, size.fleet_nodes)
    fleet = draw_fleet(rng, hall, size.fleet_nodes)
    return _Compared(hall, fleet.today.readings, new_judge(fleet))


def _failed(rng: np.random.Generator, fleet: _Compared, nodes: int, visit: str) -> int:
    """How many of so many healthy nodes the judge fails."""
    healthy = draw_trials(rng, fleet.hall, [(HEALTHY, nodes)], _earlier(visit))
    return int(np.count_nonzero(fleet.judge(healthy).failed))


def _against(
    rng: np.random.Generator, size: Size, fleet: _Compared, visit: str, tuned: Limits, cells: Sequence[Cell]
) -> Iterator[Row]:
    rivals = {each.name: each.judge for each in baselines(fleet.readings, tuned)}
    sizes = [(HEALTHY, size.shared(size.healthy)), *((cell, size.shared(size.trials)) for cell in cells)]
    trials = draw_trials(rng, fleet.hall, sizes, _earlier(visit))
    return rows_of(trials, visit, fleet.judge(trials), {name: rival(trials) for name, rival in rivals.items()})


def _earlier(visit: str) -> int:
    return EARLIER_VISITS if visit == "later" else 0


def rows_of(trials: Trials, visit: str, verdicts: Verdicts, rivals: Mapping[str, Verdicts]) -> Iterator[Row]:
    """The counts of each cell of these trials."""
    showed = (shows(trials.today.readings) & trials.hit).any(axis=1)
    right = verdicts.failed & (verdicts.named & trials.hit).any(axis=1)
    right &= ~(verdicts.named & ~trials.hit).any(axis=1)
    minutes = np.where(verdicts.failed, verdicts.minutes, 0.0)
    for index, cell in enumerate(trials.cells):
        mine = trials.cell == index

        def count(flags: Flags, among: Flags = mine) -> Count:
            return Count(int(np.count_nonzero(flags & among)), int(np.count_nonzero(among)))

        yield Row(
            cell,
            visit,
            shown=count(verdicts.failed, mine & showed),
            located=count(right, mine & verdicts.failed),
            warned=count(verdicts.warned),
            retested=count(verdicts.retested),
            minutes=float(minutes[mine].sum()),
            by_fleet={name: (count(each.failed),) for name, each in {MUSTER: verdicts, **rivals}.items()},
        )
