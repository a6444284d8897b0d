"""What Muster has to be better than: three simpler tests, each tuned to fail as many healthy nodes as Muster does.

All of them make the discrete checks (missing, width, counts, throttling) that every burn-in makes, beside one of:

* a fixed share of the fleet's mean, as SuperBench's rules (``x/mean − 1 < −0.05``);
* a fixed share of a SKU figure, as DCGM's diagnostics (0.75 of what the SKU table says), one share for all metrics;
* a fixed share of the device's own earlier mean.

The first and the last are tuned metric by metric, which makes them stronger than one share for all would. None of them
may convict for less than 3 %, as Muster may not: that is policy (issue 5), not power.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tests.bench.accuracy.draws import Array
from tests.bench.accuracy.fleet import Trials
from tests.bench.accuracy.metrics import CONTINUOUS, Metric
from tests.bench.accuracy.physics import Readings
from tests.bench.accuracy.verdicts import Verdicts, shows

EFFECT_MIN = 0.03
UNTUNED_MEAN, UNTUNED_FIGURE = 0.05, 0.25
_BISECTIONS = 30

Reference = Callable[[Trials, Metric], Array | float | None]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A test by fixed shares. ``limits``: how far a metric may be on the bad side of its reference, as a share."""

    name: str
    reference: Reference
    limits: Mapping[str, float]

    def judge(self, trials: Trials) -> Verdicts:
        """Fail whatever is beyond its limit."""
        accused = shows(trials.today.readings)
        for metric in CONTINUOUS:
            distance = adverse(trials, metric, self.reference)
            if distance is not None:
                accused |= distance > self.limits[metric.key]
        return Verdicts.plain(accused)


def adverse(trials: Trials, metric: Metric, reference: Reference) -> Array | None:
    """How far on the bad side of its reference each GPU is, as a share; None where there is no reference."""
    usual = reference(trials, metric)
    if usual is None:
        return None
    share = trials.today.readings[metric.key] / usual - 1.0
    return np.asarray(share if metric.bad == "high" else -share)


def fleet_mean(fleet: Readings) -> Reference:
    """The mean of the fleet's latest values."""
    means = {metric.key: float(np.nanmean(fleet[metric.key])) for metric in CONTINUOUS}
    return lambda trials, metric: means[metric.key]


def sku_figure(trials: Trials, metric: Metric) -> float | None:
    """What is published of the SKU."""
    return metric.figure


def own_mean(trials: Trials, metric: Metric) -> Array | None:
    """The mean of the device's earlier visits."""
    earlier = [visit.readings[metric.key] for visit in trials.visits[:-1]]
    return np.asarray(np.mean(earlier, axis=0)) if earlier else None


Limits = Mapping[str, Mapping[str, float]]
"""Name of a baseline → key of a metric → limit."""

Worst = Mapping[str, Array]
"""Key of a metric → the distance of each node's worst GPU."""


KEPT, KEPT_MIN = 0.02, 10


@dataclasses.dataclass(frozen=True)
class Sample:
    """So many healthy ``nodes``, and the distances of those among the worst ``KEPT`` of their lot in any metric.

    Limits fail one node in 1,000, so millions of nodes are needed to know one well, and those near it are enough.
    """

    nodes: int
    worst: Worst

    @classmethod
    def of(cls, worst: Worst) -> Sample:
        """The sample that one lot of nodes makes."""
        nodes = len(next(iter(worst.values())))
        rank = max(int(nodes * (1.0 - KEPT)) - KEPT_MIN, 0)
        kept = np.any([values >= np.partition(values, rank)[rank] for values in worst.values()], axis=0)
        return cls(nodes, {key: values[kept] for key, values in worst.items()})

    def exceeded_by(self, values: Array, share: float) -> float:
        """What another value like these exceeds with this probability (Weibull's plotting positions).

        ``values``: of the nodes kept.
        """
        fallen = np.sort(values)[::-1]
        return float(np.interp(share * (self.nodes + 1), np.arange(1, len(fallen) + 1), fallen))

    def failed(self, limits: Mapping[str, float]) -> float:
        """The share of nodes of which a metric is beyond its limit."""
        return float(np.sum(np.any([values > limits[key] for key, values in self.worst.items()], axis=0))) / self.nodes


Halves = Mapping[str, tuple[Sample, Sample]]
"""Name of a baseline → the nodes that limits are taken from, and those on which they are tried."""


def healthy_halves(fleet: Readings, draws: Iterable[Trials]) -> Halves:
    """How far healthy nodes are from each test's reference. ``draws``: lots, two or more of them with earlier visits,
    without which a device has no history of its own.
    """
    references = {"share of mean": fleet_mean(fleet), "share of figure": sku_figure, "own history": own_mean}
    samples: dict[str, list[Sample]] = {name: [] for name in references}
    for trials in draws:
        for name, reference in references.items():
            if worst := _worst(trials, reference):
                samples[name].append(Sample.of(worst))
    return {name: (_joined(lots[::2]), _joined(lots[1::2])) for name, lots in samples.items()}


def tune(healthy: Halves, false_fails: float) -> Limits:
    """Limits of the three tests, tuned to fail this share of healthy nodes.

    Limits are taken from one half of the nodes, and how many they fail is counted on the other: limits at the rim of a
    sample fail more of the next one.
    """
    return {
        "share of mean": tuned_each(*healthy["share of mean"], false_fails),
        "share of figure": tuned_alike(_joined(healthy["share of figure"]), false_fails),
        "own history": tuned_each(*healthy["own history"], false_fails),
    }


def baselines(fleet: Readings, tuned: Limits) -> tuple[Baseline, ...]:
    """The three tuned tests beside a fleet, then two as they are used: −5 % of the mean, and 75 % of the figure."""
    mean = fleet_mean(fleet)
    return (
        Baseline("share of mean", mean, tuned["share of mean"]),
        Baseline("share of figure", sku_figure, tuned["share of figure"]),
        Baseline("own history", own_mean, tuned["own history"]),
        Baseline("−5 % of mean", mean, _alike(UNTUNED_MEAN)),
        Baseline("75 % of figure", sku_figure, _alike(UNTUNED_FIGURE)),
    )


def tuned_alike(healthy: Sample, false_fails: float) -> dict[str, float]:
    """One limit for all metrics, such that the worst metric of a healthy node is beyond it as often as allowed."""
    return _alike(healthy.exceeded_by(np.max(list(healthy.worst.values()), axis=0), false_fails))


def tuned_each(sample: Sample, others: Sample, false_fails: float) -> dict[str, float]:
    """A limit for each metric, exceeded by the same share of healthy nodes each: as many as are allowed together.

    Limits are those of ``sample``; together they fail as many of ``others`` as is allowed, or fewer.
    """

    def limits(share: float) -> dict[str, float]:
        return {key: max(EFFECT_MIN, sample.exceeded_by(values, share)) for key, values in sample.worst.items()}

    low, high = 0.0, false_fails
    for _ in range(_BISECTIONS):
        share = (low + high) / 2.0
        low, high = (low, share) if others.failed(limits(share)) > false_fails else (share, high)
    return limits(low)


def _worst(healthy: Trials, reference: Reference) -> Worst:
    """The distance of each node's worst GPU, by metric."""
    found = {metric.key: adverse(healthy, metric, reference) for metric in CONTINUOUS}
    return {key: np.asarray(distance.max(axis=1)) for key, distance in found.items() if distance is not None}


def _joined(lots: Sequence[Sample]) -> Sample:
    keys = lots[0].worst
    return Sample(
        sum(lot.nodes for lot in lots), {key: np.concatenate([lot.worst[key] for lot in lots]) for key in keys}
    )


def _alike(limit: float) -> dict[str, float]:
    return {metric.key: limit for metric in CONTINUOUS}
