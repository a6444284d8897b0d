"""Telemetry aggregates in bounded memory: quantiles, slope and time in state of a series of any length.

Quantiles come from a histogram whose bins grow geometrically, so that their error is relative and known. A reservoir
would be shorter, but its error is random: the same run would give two results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

BINS_MAX = 1024
"""Bins of one histogram; at the first accuracy they span a factor of 28,000 between smallest and largest value."""

ACCURACY = 0.005
"""Relative error of a quantile: 0.4 °C at 80 °C, 3.5 W at 700 W. Doubled each time the bins have to be merged."""

STATES_MAX = 64
"""Distinct states kept of one series; the time of any further ones goes to "other"."""

SMALLEST = 1e-9
"""Magnitudes below this count as zero."""


class Histogram:
    """Counts of values in geometric bins. A quantile is off by at most ``accuracy`` (relative) from the exact one.

    The exact one is the nearest-rank quantile: the smallest value that at least ``share`` of all values do not exceed.
    """

    def __init__(self) -> None:
        self._log_gamma = math.log((1 + ACCURACY) / (1 - ACCURACY))
        self._positive: dict[int, _Bin] = {}
        self._negative: dict[int, _Bin] = {}
        self._zero = 0
        self.count = 0

    @property
    def accuracy(self) -> float:
        """The relative error that holds now."""
        return math.tanh(self._log_gamma / 2)

    @property
    def bins(self) -> int:
        """How many bins are in use: at most BINS_MAX."""
        return len(self._positive) + len(self._negative)

    def add(self, value: float) -> None:
        """Count one finite value."""
        self.count += 1
        size = abs(value)
        if size < SMALLEST:
            self._zero += 1
            return
        bins = self._positive if value > 0 else self._negative
        index = math.ceil(math.log(size) / self._log_gamma)
        known = bins.get(index)
        if known is None:
            bins[index] = _Bin(1, size, size)
        else:
            known.add(1, size, size)
        while self.bins > BINS_MAX:
            self._merge()

    def quantile(self, share: float) -> float | None:
        """The ``share`` quantile (0 < share <= 1), None without values."""
        if not self.count:
            return None
        rank = max(1, math.ceil(share * self.count - 1e-9))
        seen = 0
        for value, count in self._ascending():
            seen += count
            if seen >= rank:
                return value
        return None

    def _merge(self) -> None:
        # Each pair of neighbouring bins becomes one: gamma is squared, and the guarantee holds for all bins alike.
        self._log_gamma *= 2
        self._positive = _halved(self._positive)
        self._negative = _halved(self._negative)

    def _ascending(self) -> Iterator[tuple[float, int]]:
        for index in sorted(self._negative, reverse=True):
            yield -self._negative[index].middle(), self._negative[index].count
        if self._zero:
            yield 0.0, self._zero
        for index in sorted(self._positive):
            yield self._positive[index].middle(), self._positive[index].count


class _Bin:
    """How many magnitudes fell into a bin, and the least and greatest of them: sensors that read in whole degrees put
    one value into a bin, which is then exact.
    """

    __slots__ = ("count", "high", "low")

    def __init__(self, count: int, low: float, high: float) -> None:
        self.count = count
        self.low = low
        self.high = high

    def add(self, count: int, low: float, high: float) -> None:
        self.count += count
        self.low = min(self.low, low)
        self.high = max(self.high, high)

    def middle(self) -> float:
        # Equally far, relatively, from both ends; the harmonic mean, written so that it cannot overflow.
        return self.low * (2 / (1 + self.low / self.high)) if self.low < self.high else self.low


def _halved(bins: dict[int, _Bin]) -> dict[int, _Bin]:
    merged: dict[int, _Bin] = {}
    for index, one in bins.items():
        half = math.ceil(index / 2)
        if half in merged:
            merged[half].add(one.count, one.low, one.high)
        else:
            merged[half] = one
    return merged


class Line:
    """Least-squares line through points that are seen once, updated about the running means so that it stays exact."""

    def __init__(self) -> None:
        self._count = 0
        self._mean_t = 0.0
        self._mean_x = 0.0
        self._tt = 0.0
        self._tx = 0.0

    def add(self, t: float, x: float) -> None:
        """One point: ``t`` in seconds."""
        self._count += 1
        off_t = t - self._mean_t
        self._mean_t += off_t / self._count
        self._mean_x += (x - self._mean_x) / self._count
        self._tt += off_t * (t - self._mean_t)
        self._tx += off_t * (x - self._mean_x)

    def slope_per_min(self) -> float | None:
        """Units of x per minute; None if all points lie at one time."""
        return 60 * self._tx / self._tt if self._tt > 0 else None


class NumberSeries:
    """All that is kept of a series of numbers."""

    def __init__(self) -> None:
        self.minimum = math.inf
        self.maximum = -math.inf
        self.histogram = Histogram()
        self._line = Line()
        self._first_t: float | None = None

    def add(self, t: float, value: float) -> None:
        """One finite sample, ``t`` in seconds."""
        if self._first_t is None:
            self._first_t = t
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        self.histogram.add(value)
        # Epoch seconds are so large that their differences lose digits in the products; time from the start is not.
        self._line.add(t - self._first_t, value)

    def quantile(self, share: float) -> float | None:
        """As Histogram.quantile, but never outside what was seen."""
        value = self.histogram.quantile(share)
        return None if value is None else min(max(value, self.minimum), self.maximum)

    def slope_per_min(self) -> float | None:
        """Least-squares slope in units per minute."""
        return self._line.slope_per_min()


class StateSeries:
    """Seconds spent in each state: a state holds until the next sample, but no longer than its ``hold_max_s``.

    The limit keeps a gap in the readings (a sensor that hung) from being booked as time in whatever came before it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds: dict[str, float] = {}
        self._last: tuple[float, str] | None = None

    def add(self, t: float, state: str, hold_max_s: float) -> None:
        """One sample, ``t`` in seconds; the one before it is taken to have held for ``hold_max_s`` at most."""
        self.count += 1
        if state not in self.seconds and len(self.seconds) >= STATES_MAX:
            state = "other"
        self.seconds.setdefault(state, 0.0)
        if self._last is not None:
            since, held = self._last
            self.seconds[held] += min(max(t - since, 0.0), hold_max_s)
        self._last = (t, state)
