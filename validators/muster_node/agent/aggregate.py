"""What probes ask of the telemetry so far, in bounded memory: the median of a decimated series, time in state.

Stages take hours, of which every n-th reading tells the median well enough; which are kept depends on their number
alone, so that the same readings always give the same result.
"""

from __future__ import annotations

import array

KEPT_MAX = 2048
"""Readings kept of one series: all of the first half hour at one a second, later every n-th. Of 1,024 evenly spaced
readings the median's rank is off by a percent or two (standard error √(p(1 − p)/n))."""

STATES_MAX = 64
"""Distinct states kept of one series; the time of any further ones goes to "other"."""


class NumberSeries:
    """A series of numbers: how many there were, and every n-th of them."""

    def __init__(self) -> None:
        self.count = 0
        self._kept = array.array("d")
        self._every = 1

    def add(self, value: float) -> None:
        """One finite sample."""
        if self.count % self._every == 0:
            self._kept.append(value)
            if len(self._kept) > KEPT_MAX:
                self._kept = self._kept[::2]
                self._every *= 2
        self.count += 1

    def median(self) -> float | None:
        """The smallest kept value that at least half of those kept do not exceed; None without any."""
        return sorted(self._kept)[(len(self._kept) - 1) // 2] if self._kept else None


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
