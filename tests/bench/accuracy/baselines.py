"""The baselines: three simpler tests, each tuned (``tuning``) to fail as many healthy nodes as Muster does.

All of them make the discrete checks (missing, width, counts, throttling) that every burn-in makes, beside one of:

* a fixed share of the fleet's mean, as SuperBench's rules (``x/mean − 1 < −0.05``);
* a fixed share of a SKU figure, as DCGM's diagnostics (0.75 of what the SKU table says), one share for all metrics;
* a fixed share of the device's own earlier mean.

The first and the last are tuned metric by metric, which makes them stronger than one share for all would. None of them
may fail a node for less than 3 %, as Muster may not: that is policy, not power.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from tests.bench.accuracy.draws import Array
from tests.bench.accuracy.fleet import Trials
from tests.bench.accuracy.metrics import CONTINUOUS, Metric
from tests.bench.accuracy.physics import Readings
from tests.bench.accuracy.verdicts import Verdicts, shows

UNTUNED_MEAN, UNTUNED_FIGURE = 0.05, 0.25

Reference = Callable[[Trials, Metric], Array | float | None]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A test by fixed shares. ``limits``: how far a metric may be on the bad side of its reference, as a share."""

    name: str
    reference: Reference
    limits: Mapping[str, float]

    def judge(self, trials: Trials) -> Verdicts:
        """Fails every GPU that is beyond a limit."""
        named = shows(trials.today.readings)
        for metric in CONTINUOUS:
            distance = adverse(trials, metric, self.reference)
            if distance is not None:
                named |= distance > self.limits[metric.key]
        return Verdicts.plain(named)


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
    """The SKU's published figure; None where none is published."""
    return metric.figure


def own_mean(trials: Trials, metric: Metric) -> Array | None:
    """The mean of the device's earlier visits."""
    earlier = [visit.readings[metric.key] for visit in trials.visits[:-1]]
    return np.asarray(np.mean(earlier, axis=0)) if earlier else None


Limits = Mapping[str, Mapping[str, float]]
"""Name of a baseline → key of a metric → limit."""


def baselines(fleet: Readings, tuned: Limits) -> tuple[Baseline, ...]:
    """The three tuned tests beside a fleet, then two as they are used: −5 % of the mean, and 75 % of the figure."""
    by_name = references(fleet)
    return (
        *(Baseline(name, reference, tuned[name]) for name, reference in by_name.items()),
        Baseline("−5 % of mean", by_name["share of mean"], alike(UNTUNED_MEAN)),
        Baseline("75 % of figure", sku_figure, alike(UNTUNED_FIGURE)),
    )


def references(fleet: Readings) -> dict[str, Reference]:
    """Reference of each tuned baseline beside a fleet, by the baseline's name."""
    return {"share of mean": fleet_mean(fleet), "share of figure": sku_figure, "own history": own_mean}


def alike(limit: float) -> dict[str, float]:
    """The same limit for every metric."""
    return {metric.key: limit for metric in CONTINUOUS}
