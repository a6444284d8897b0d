"""Fleets to judge against, and trials: nodes with one fault each, or none, and their earlier visits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.bench.accuracy.devices import GPUS, Devices, Hall, Places, build
from tests.bench.accuracy.faults import FAULTS, Fault, Severity
from tests.bench.accuracy.physics import Readings, measure

FLEET_NODES = 5000
"""Tails of small fleets are less certain, so thresholds are higher there: the bars are to be held from this size on."""
FAULTY_SHARE = 0.015
"""Issue 5: at real prevalence, at most 2 % of nodes. Their faults are drawn evenly from all classes and severities."""

FLEET_VISITS = 5
"""Visits of each node of a fleet that peer statistics are made of, today's among them: as many as in the records."""

EARLIER_VISITS = 3
"""Visits that a node has behind it in the trials of later visits, all of them before its fault."""

TODAY = 20_000.0
WEEK = 7.0


@dataclasses.dataclass(frozen=True)
class Cell:
    """One row of the result: a fault at one severity; without either, healthy nodes."""

    fault: Fault | None = None
    severity: Severity | None = None


HEALTHY = Cell()
CELLS = tuple(Cell(fault, severity) for fault in FAULTS for severity in fault.severities)


@dataclasses.dataclass(frozen=True)
class Visit:
    """One visit of every node. ``day``: since 1970, of each node."""

    day: npt.NDArray[np.float64]
    readings: Readings


@dataclasses.dataclass(frozen=True)
class Trials:
    """Nodes and what was measured of them. ``cell``: index into ``cells``, of each node; ``hit``: the faulty GPUs.

    ``visits``: in order of time, today's last. ``again``: today's measurement once more, for a retest.
    """

    cells: tuple[Cell, ...]
    cell: npt.NDArray[np.int64]
    hit: npt.NDArray[np.bool_]
    places: Places
    visits: tuple[Visit, ...]
    again: Visit

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.cell)

    @property
    def today(self) -> Visit:
        """The visit to be judged."""
        return self.visits[-1]


def draw_fleet(rng: np.random.Generator, hall: Hall, nodes: int = FLEET_NODES) -> Trials:
    """A fleet as it stands: almost all healthy, visited as often as peer statistics look back; the faulty ones fail at
    today's visit.
    """
    faulty = [CELLS[index] for index in rng.integers(0, len(CELLS), int(nodes * FAULTY_SHARE))]
    return draw_trials(rng, hall, [(HEALTHY, nodes - len(faulty)), *((cell, 1) for cell in faulty)], FLEET_VISITS - 1)


def draw_trials(
    rng: np.random.Generator,
    hall: Hall,
    sizes: Sequence[tuple[Cell, int]],
    earlier: int,
) -> Trials:
    """So many nodes of each cell, placed anywhere in the hall, after ``earlier`` visits at which all were healthy."""
    sound = [build(rng, count) for _, count in sizes]
    slots = [rng.integers(0, GPUS, count) for _, count in sizes]
    hits = [
        cell.fault.hit(hit_slots) if cell.fault else np.zeros((len(hit_slots), GPUS), dtype=np.bool_)
        for (cell, _), hit_slots in zip(sizes, slots, strict=True)
    ]
    before = Devices.joined(sound)
    now = Devices.joined(
        [
            cell.fault.inflict(devices, hit_slots, cell.severity) if cell.fault and cell.severity else devices
            for (cell, _), devices, hit_slots in zip(sizes, sound, slots, strict=True)
        ]
    )
    places = hall.fill(rng, len(now))
    past = [_visit(rng, hall, before, places, TODAY - WEEK * left) for left in range(earlier, 0, -1)]
    today, again = _twice(rng, hall, now, places)
    return Trials(
        cells=tuple(cell for cell, _ in sizes),
        cell=np.repeat(np.arange(len(sizes)), [count for _, count in sizes]),
        hit=np.concatenate(hits),
        places=places,
        visits=(*past, today),
        again=again,
    )


def _visit(rng: np.random.Generator, hall: Hall, devices: Devices, places: Places, day: float) -> Visit:
    hour, inlet = hall.inlet(rng, places)
    return Visit(day + hour / 24.0, measure(rng, devices, places, inlet))


def _twice(rng: np.random.Generator, hall: Hall, devices: Devices, places: Places) -> tuple[Visit, Visit]:
    """Two measurements an hour apart: the same inlet, each with run-to-run noise of its own."""
    hour, inlet = hall.inlet(rng, places)
    first, second = (measure(rng, devices, places, inlet) for _ in range(2))
    return Visit(TODAY + hour / 24.0, first), Visit(TODAY + (hour + 1.0) / 24.0, second)
