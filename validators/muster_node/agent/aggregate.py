"""Telemetry aggregates in bounded memory: exact extremes and slope, quantiles of a decimated series, time in state.

Stages take hours, of which every n-th reading tells the quantiles well enough; which are kept depends on their number
alone, so that the same readings always give the same result.
"""

from __future__ import annotations

import array
import math

KEPT_MAX = 2048
"""Readings kept of one series: all of the first half hour at one a second, later every n-th. Of 1,024 evenly spaced
readings a quantile's rank is off by less than a percent or two (standard error √(p(1 − p)/n))."""

STATES_MAX = 64
"""Distinct states kept of one series; the time of any further ones goes to "other"."""


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
        self.count = 0
        self.minimum = math.inf
        self.maximum = -math.inf
        self._kept = array.array("d")
        self._every = 1
        self._line = Line()
        self._first_t: float | None = None

    def add(self, t: float, value: float) -> None:
        """One finite sample, ``t`` in seconds."""
        if self._first_t is None:
            self._first_t = t
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        if self.count % self._every == 0:
            self._kept.append(value)
            if len(self._kept) > KEPT_MAX:
                self._kept = self._kept[::2]
                self._every *= 2
        self.count += 1
        # Epoch seconds are so large that their differences lose digits in the products; time from the start is not.
        self._line.add(t - self._first_t, value)

    def quantile(self, share: float) -> float | None:
        """The smallest kept value that at least ``share`` (0 < share <= 1) of those kept do not exceed, if any are."""
        if not self._kept:
            return None
        return sorted(self._kept)[max(1, math.ceil(share * len(self._kept) - 1e-9)) - 1]

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
        self.seconds = self.seconds_until(t, hold_max_s)
        self._last = (t, state)

    def seconds_until(self, t: float, hold_max_s: float) -> dict[str, float]:
        """By state, with the time for which the last one has held by ``t``."""
        seconds = dict(self.seconds)
        if self._last is not None:
            since, held = self._last
            seconds[held] += min(max(t - since, 0.0), hold_max_s)
        return seconds
