"""Limits of the tuned baselines, by the share of healthy nodes that they fail: computed once, stored, loaded.

``python -m tests.bench.accuracy --tune`` draws over a million healthy nodes and writes ``tuned_baselines.json``; it
takes about two minutes of CPU time and is needed again only when the generator or the baselines change. The file
carries medians of a small draw, by which a test notices such a change.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.accuracy.baselines import Limits, adverse, alike, references
from tests.bench.accuracy.devices import Hall
from tests.bench.accuracy.draws import Array
from tests.bench.accuracy.fleet import EARLIER_VISITS, FLEET_NODES, HEALTHY, Trials, draw_fleet, draw_trials
from tests.bench.accuracy.metrics import CONTINUOUS, METRICS

FILE = Path(__file__).with_name("tuned_baselines.json")
COMMAND = "python -m tests.bench.accuracy --tune --seed {seed}"

EFFECT_MIN = 0.03
SHARES = tuple(float(share) for share in np.geomspace(1e-5, 4e-3, 27))
"""Shares of healthy nodes failed for which limits are stored, ten in a decade."""

KEPT, KEPT_MIN = 0.006, 10
"""Of each lot and metric, the share of nodes kept: more than the greatest of ``SHARES``."""

_BISECTIONS = 30
_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class Size:
    """Number of fleets, and for each the lots of healthy nodes; the first ``with_past`` lots have earlier visits.

    Together 1.28 million nodes: with a tenth of these, the limits of two metrics with equal spread differed such that
    one failed half as many nodes again as the other.
    """

    fleets: int = 8
    fleet_nodes: int = FLEET_NODES
    lots: int = 16
    with_past: int = 4
    lot: int = 10_000


Worst = Mapping[str, Array]
"""Key of a metric → the distance of each node's worst GPU from the baseline's reference."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Distances of healthy ``nodes``; only of those that are among the worst ``KEPT`` of their lot in any metric."""

    nodes: int
    worst: Worst

    @functools.cached_property
    def descending(self) -> Worst:
        """The distances kept, by metric, the largest first."""
        return {key: np.sort(values)[::-1] for key, values in self.worst.items()}

    @classmethod
    def of(cls, worst: Worst) -> Sample:
        """The sample of one lot of nodes."""
        nodes = len(next(iter(worst.values())))
        rank = max(int(nodes * (1.0 - KEPT)) - KEPT_MIN, 0)
        kept = np.any([values >= np.partition(values, rank)[rank] for values in worst.values()], axis=0)
        return cls(nodes, {key: values[kept] for key, values in worst.items()})

    @classmethod
    def joined(cls, lots: Sequence[Sample]) -> Sample:
        """All lots as one sample."""
        keys = lots[0].worst
        return cls(
            sum(lot.nodes for lot in lots), {key: np.concatenate([lot.worst[key] for lot in lots]) for key in keys}
        )

    def exceeded_by(self, descending: Array, share: float) -> float:
        """The limit that a healthy node exceeds with this probability (Weibull's plotting positions).

        ``descending``: of the nodes kept, the largest first.
        """
        return float(np.interp(share * (self.nodes + 1), np.arange(1, len(descending) + 1), descending))

    def failed(self, limits: Mapping[str, float]) -> float:
        """The share of nodes of which a metric is beyond its limit."""
        return float(np.sum(np.any([values > limits[key] for key, values in self.worst.items()], axis=0))) / self.nodes


@dataclasses.dataclass(frozen=True)
class Table:
    """Limits by share of healthy nodes failed. ``limits``: baseline → metric → one limit for each of ``shares``."""

    command: str
    nodes: int
    shares: tuple[float, ...]
    limits: Mapping[str, Mapping[str, tuple[float, ...]]]
    generator: Mapping[str, float]

    def at(self, share: float) -> Limits:
        """Limits that fail this share of healthy nodes; beyond the stored shares, those of the nearest."""
        return {
            name: {key: float(np.interp(np.log(share), np.log(self.shares), values)) for key, values in each.items()}
            for name, each in self.limits.items()
        }

    def write(self, file: Path = FILE) -> None:
        """Store the table as JSON."""
        file.write_text(json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, file: Path = FILE) -> Table:
        """The stored table."""
        stored: dict[str, Any] = json.loads(file.read_text())
        limits = {name: {key: tuple(of) for key, of in each.items()} for name, each in stored.pop("limits").items()}
        return cls(limits=limits, shares=tuple(stored.pop("shares")), **stored)


def tune(seed: int, size: Size) -> Table:
    """Draws healthy nodes beside several fleets, and takes from them the limits of the three baselines.

    Limits are taken from half of the lots, and the share that they fail is counted on the other half: limits at the rim
    of a sample fail more of the next one.
    """
    samples: dict[str, list[Sample]] = {}
    for name, sample in _samples(seed, size):
        samples.setdefault(name, []).append(sample)
    limits = {name: _limits(name, lots) for name, lots in samples.items()}
    nodes = size.fleets * size.lots * size.lot
    return Table(COMMAND.format(seed=seed), nodes, SHARES, limits, generator_medians())


def generator_medians() -> dict[str, float]:
    """Median of each metric over a small draw that is always the same: changes when the generator does."""
    rng = np.random.default_rng(0)
    trials = draw_trials(rng, Hall.draw(rng, 100), [(HEALTHY, 100)], 0)
    return {metric.key: float(f"{np.median(trials.today.readings[metric.key]):.9g}") for metric in METRICS}


def tuned_alike(healthy: Sample, share: float) -> dict[str, float]:
    """One limit for all metrics, such that the worst metric of a healthy node is beyond it in this share of nodes."""
    return alike(healthy.exceeded_by(np.sort(np.max(list(healthy.worst.values()), axis=0))[::-1], share))


def tuned_each(sample: Sample, others: Sample, share: float) -> dict[str, float]:
    """A limit for each metric, exceeded by the same share of healthy nodes each: as many as are allowed together.

    Limits are those of ``sample``; together they fail this share of ``others``, or fewer.
    """

    def limits(each: float) -> dict[str, float]:
        return {key: max(EFFECT_MIN, sample.exceeded_by(values, each)) for key, values in sample.descending.items()}

    low, high = 0.0, share
    for _ in range(_BISECTIONS):
        each = (low + high) / 2.0
        low, high = (low, each) if others.failed(limits(each)) > share else (each, high)
    return limits(low)


def _samples(seed: int, size: Size) -> Iterator[tuple[str, Sample]]:
    for number in range(size.fleets):
        rng = np.random.default_rng([seed, number, 1])  # not the fleets that the bench draws of this seed
        hall = Hall.draw(rng, size.fleet_nodes)
        by_name = references(draw_fleet(rng, hall, size.fleet_nodes).today.readings)
        for trials in _lots(rng, hall, size):
            for name, reference in by_name.items():
                distances = {metric.key: adverse(trials, metric, reference) for metric in CONTINUOUS}
                worst = {key: np.asarray(each.max(axis=1)) for key, each in distances.items() if each is not None}
                if worst:
                    yield name, Sample.of(worst)


def _lots(rng: np.random.Generator, hall: Hall, size: Size) -> Iterable[Trials]:
    for lot in range(size.lots):
        earlier = EARLIER_VISITS if lot < size.with_past else 0
        yield draw_trials(rng, hall, [(HEALTHY, size.lot)], earlier, repeat=False)


def _limits(name: str, lots: Sequence[Sample]) -> dict[str, tuple[float, ...]]:
    whole, halves = Sample.joined(lots), (Sample.joined(lots[::2]), Sample.joined(lots[1::2]))
    tuned = [tuned_alike(whole, share) if name == "share of figure" else tuned_each(*halves, share) for share in SHARES]
    return {key: tuple(round(each[key], _DIGITS) for each in tuned) for key in tuned[0]}
