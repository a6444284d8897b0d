"""Limits of the tuned baselines, by the share of healthy nodes that they fail: ``tuned_baselines.json``.

They were taken from over a million healthy nodes of this generator. The file says by which command and carries medians
of a small draw, by which a test notices that the generator has changed since; the code that tuned them is in the
history of this repository, in ``tests/bench/accuracy/tuning.py``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.accuracy.baselines import Limits
from tests.bench.accuracy.devices import Hall
from tests.bench.accuracy.fleet import HEALTHY, draw_trials
from tests.bench.accuracy.metrics import METRICS

FILE = Path(__file__).with_name("tuned_baselines.json")
EFFECT_MIN = 0.03
"""The least stored limit."""


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

    @classmethod
    def load(cls, file: Path = FILE) -> Table:
        """The stored table."""
        stored: dict[str, Any] = json.loads(file.read_text())
        limits = {name: {key: tuple(of) for key, of in each.items()} for name, each in stored.pop("limits").items()}
        return cls(limits=limits, shares=tuple(stored.pop("shares")), **stored)


def generator_medians() -> dict[str, float]:
    """Median of each metric over a small draw that is always the same: changes when the generator does."""
    rng = np.random.default_rng(0)
    trials = draw_trials(rng, Hall.draw(rng, 100), [(HEALTHY, 100)], 0)
    return {metric.key: float(f"{np.median(trials.today.readings[metric.key]):.9g}") for metric in METRICS}
