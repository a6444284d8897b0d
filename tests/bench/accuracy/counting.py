"""Counts of trials and the limits within which their true rate lies."""

from __future__ import annotations

import dataclasses

from scipy.stats import beta

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
        if self.hits == 0:
            return 0.0
        return float(beta.ppf((1.0 - CONFIDENCE) / 2.0, self.hits, self.of - self.hits + 1))

    @property
    def high(self) -> float:
        """Upper limit of the same interval."""
        if self.hits == self.of:
            return 1.0
        return float(beta.ppf((1.0 + CONFIDENCE) / 2.0, self.hits + 1, self.of - self.hits))
