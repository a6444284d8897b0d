"""Seconds that a device spent in each state, from the telemetry so far, in bounded memory."""

from __future__ import annotations

STATES_MAX = 64
"""Distinct states kept of one series; the time of any further ones goes to "other"."""
MINUTE_S = 60.0


class StateSeries:
    """Seconds spent in each state: a state holds until the next sample, but no longer than its ``hold_max_s``.

    The limit keeps a gap in the readings (a sensor that hung) from being booked as time in whatever came before it.
    ``peaks``: by cause (states joined by "+" held at once), most seconds within a minute, but for the last sample.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, float] = {}
        self._recent: list[tuple[float, float, list[str]]] = []
        self._last: tuple[float, str] | None = None

    def add(self, t: float, state: str, hold_max_s: float) -> None:
        """One sample, ``t`` in seconds; the one before it is taken to have held for ``hold_max_s`` at most."""
        if state not in self.seconds and len(self.seconds) >= STATES_MAX:
            state = "other"
        self.seconds.setdefault(state, 0.0)
        self.seconds = self.seconds_until(t, hold_max_s)
        if self._last is not None:
            since, ended = self._last
            self._count(since, min(max(t - since, 0.0), hold_max_s), ended.split("+"))
        self._last = (t, state)

    def seconds_until(self, t: float, hold_max_s: float) -> dict[str, float]:
        """By state, with the time for which the last one has held by ``t``."""
        seconds = dict(self.seconds)
        if self._last is not None:
            since, held = self._last
            seconds[held] += min(max(t - since, 0.0), hold_max_s)
        return seconds

    def _count(self, since: float, held: float, causes: list[str]) -> None:
        self._recent = [each for each in self._recent if abs(since - each[0]) < MINUTE_S]
        self._recent.append((since, held, causes))
        for cause in causes:
            within = sum(seconds for _, seconds, of in self._recent if cause in of)
            self.peaks[cause] = max(self.peaks.get(cause, 0.0), min(within, MINUTE_S))
