"""Readings of a made-up fleet, for tests of the fleet's rules and for timing them: numbers only, no physics."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.readings import as_readings

GPUS = 8
DAY = 20_000.0


@dataclasses.dataclass(frozen=True)
class Fleet:
    """So many nodes, each with so many metrics on each of eight GPUs: half hardly vary, half follow the variation.

    ``tails``: None for Gaussian noise, else the degrees of freedom of a Student-t. ``skew``: noise is squared on its
    worse side. Spreads are shares: of parts (``varied``) and from run to run (``noise``).
    """

    nodes: int
    metrics: int = 6
    seed: int = 0
    variation: float = 0.0175
    noise: float = 0.004
    tails: float | None = None
    skew: bool = False
    zones: int = 1

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """What is compared: ``clock_N`` follow the variation and are one family; ``work_N`` hardly vary."""
        half = self.metrics // 2
        low = [_comparison(f"work_{at}", "work", "low") for at in range(self.metrics - half)]
        return (*low, *(_comparison(f"clock_{at}", "clock", "varied") for at in range(half)))

    def visits(self, *days: float) -> pd.DataFrame:
        """Readings of every node on each of these days, all healthy."""
        rng = np.random.default_rng(self.seed)
        variation = 1.0 + self.variation * self._drawn(rng, (self.nodes, GPUS))
        return as_readings(pd.concat([self._visit(rng, variation, day) for day in days], ignore_index=True))

    def _visit(self, rng: np.random.Generator, variation: np.ndarray, day: float) -> pd.DataFrame:
        metrics = [each.metric for each in self.comparisons]
        shape = (self.nodes, GPUS, len(metrics))
        level = 1.0 + self.noise * self._drawn(rng, shape)
        clocked = np.array([each.spread == "varied" for each in self.comparisons])
        slot = 1.0 - 0.002 * np.arange(GPUS)[None, :, None]
        value = 100.0 * level * slot * np.where(clocked, variation[:, :, None], 1.0)
        node, gpu, metric = (axis.ravel() for axis in np.indices(shape, dtype=np.int32))
        names = pd.Index([f"node-{number:05d}" for number in range(self.nodes)])
        zones = pd.Index([f"sku|zone={zone}" for zone in range(self.zones)])
        one = np.zeros(len(node), dtype=np.int8)
        return pd.DataFrame(
            {
                "node": pd.Categorical.from_codes(node, names),
                "device": pd.Categorical.from_codes(gpu, pd.Index([f"gpu{at}" for at in range(GPUS)])),
                "kind": pd.Categorical.from_codes(one, pd.Index(["gpu"])),
                "slot": gpu.astype(np.int16),
                "group": pd.Categorical.from_codes(node % self.zones, zones),
                "sku": pd.Categorical.from_codes(one, pd.Index(["sku"])),
                "metric": pd.Categorical.from_codes(metric, pd.Index(metrics)),
                "labels": pd.Categorical.from_codes(one, pd.Index([""])),
                "unit": pd.Categorical.from_codes(one, pd.Index(["TFLOPS"])),
                "value": value.ravel(),
                "at": day,
                "run": pd.Categorical.from_codes(one, pd.Index([f"run-{day:g}"])),
            }
        )

    def _drawn(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers of spread 1 (for a Student-t, of the same quartiles as a Gaussian of spread 1)."""
        if self.tails is None:
            drawn = rng.standard_normal(shape)
        else:
            drawn = rng.standard_t(self.tails, shape) * 0.6745 / 0.7407
        return np.where(drawn < 0.0, -(drawn**2), drawn) if self.skew else drawn


def _comparison(metric: str, family: str, spread: str) -> Comparison:
    return Comparison.model_validate(
        {"metric": metric, "device": "gpu", "unit": "TFLOPS", "worse": "lower", "spread": spread, "family": family}
    )


def scaled(readings: pd.DataFrame, factor: float, **where: str) -> pd.DataFrame:
    """A copy in which every reading that is of this node, device, metric … is that many times what it was."""
    chosen = np.ones(len(readings), dtype=bool)
    for name, wanted in where.items():
        chosen &= (readings[name] == wanted).to_numpy()
    assert chosen.any(), f"nothing is {where}"
    return readings.assign(value=np.where(chosen, readings["value"] * factor, readings["value"]))
