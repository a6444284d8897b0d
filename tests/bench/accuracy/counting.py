"""Counts of trials and the limits within which their true rate lies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scipy.stats import beta, t

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Count:
    """So many of so many."""

    hits: int = 0
    of: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.hits + other.hits, self.of + other.of)

    @property
    def rate(self) -> float:
        """Share; NaN of none."""
        return self.hits / self.of if self.of else float("nan")

    @property
    def low(self) -> float:
        """Lower limit of the two-sided 95 % interval of Clopper and Pearson (Biometrika 26, 1934)."""
        return _low(self.hits, self.of)

    @property
    def high(self) -> float:
        """Upper limit of the same interval."""
        return _high(self.hits, self.of)


def limits_over(parts: Sequence[Count]) -> tuple[float, float]:
    """The 95 % interval of a rate that was counted in parts, each of which has a luck of its own.

    Clopper and Pearson's, for as many independent trials as tell as much (E. Korn and B. Graubard, Confidence Intervals
    for Proportions with Small Expected Number of Positive Counts Estimated from Survey Data, 1998). All trials against
    one fleet share what its sample happens to say of its tails.
    """
    total = sum(parts, Count())
    if len(parts) < 2 or total.hits in (0, total.of):
        return total.low, total.high
    rate, number = total.rate, len(parts)
    spread = sum(((part.hits - rate * part.of) / total.of) ** 2 for part in parts) * number / (number - 1)
    as_many = rate * (1.0 - rate) / spread if spread else float(total.of)
    level = (1.0 + CONFIDENCE) / 2.0
    as_many *= float(t.ppf(level, total.of - 1) / t.ppf(level, number - 1)) ** 2
    as_many = min(as_many, float(total.of))
    return _low(rate * as_many, as_many), _high(rate * as_many, as_many)


def _low(hits: float, of: float) -> float:
    return float(beta.ppf((1.0 - CONFIDENCE) / 2.0, hits, of - hits + 1)) if hits else 0.0


def _high(hits: float, of: float) -> float:
    return float(beta.ppf((1.0 + CONFIDENCE) / 2.0, hits + 1, of - hits)) if hits < of else 1.0
