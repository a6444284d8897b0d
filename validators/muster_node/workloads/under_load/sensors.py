"""Readings of sensors under load, each with the time that it stands for: what lies between them is not known."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Callable

from muster_node.hardware.seam import Sample

HOLD_SPACINGS = 3.0
"""A reading stands for so many times the interval in which readings are due, half of it before and half after it."""
FROZEN_FROM = 10
"""Readings from which on a sensor that never changes is stuck: power is read in mW and differs from one to the next."""
STEADY_SERIES = ("temperature", "hbm_temperature", "thermal_margin", "hbm_margin")
"""Whole degrees, which may stand still under a load, but not under it and while the GPU cools down too."""

SPIKE_C, ALIKE_C = 20.0, 5.0
"""A reading that much hotter than those before and after it, which agree within the latter, is of no temperature: under
a steady load no GPU gains and loses so much within two readings. Chosen here."""
_HOTTER = {"temperature": 1.0, "hbm_temperature": 1.0, "thermal_margin": -1.0, "hbm_margin": -1.0}

Series = dict[tuple[str, str], list[float]]
"""By (series, device): readings, or the times at which they were taken."""


class Record:
    """Readings and throttle states during a load. ``now`` is the clock, ``interval_s`` when readings are due.

    ``paced``: the clock keeps pace with the processor, so that readings further apart than that are missing ones; a
    simulated one does not.
    """

    def __init__(self, now: Callable[[], float], interval_s: float, paced: bool = True) -> None:
        self._now, self._interval_s, self._paced = now, interval_s, paced
        self._began = self._ended = now()
        self._ticks: list[float] = []
        self._states: dict[str, list[tuple[float, str]]] = collections.defaultdict(list)
        self.series: Series = collections.defaultdict(list)
        self.times: Series = collections.defaultdict(list)
        self.notes: dict[tuple[str, str], str] = {}

    def add(self, samples: Iterable[Sample]) -> None:
        """Add one attempt to read all sensors, each reading at the time when it came."""
        self._ticks.append(self._now())
        for sample in samples:
            now = self._now()
            if sample.series == "throttle" and sample.state is not None:
                self._states[sample.device].append((now, sample.state))
            elif sample.value is not None:
                self.series[sample.series, sample.device].append(sample.value)
                self.times[sample.series, sample.device].append(now)
                if sample.note:
                    self.notes[sample.series, sample.device] = sample.note
        self._ended = self._now()

    def end(self) -> None:
        """The load has ended."""
        self._ended = max(self._ended, self._now())

    @property
    def seconds(self) -> float:
        """How long the load was."""
        return self._ended - self._began

    def last(self, series: str, device: str) -> list[float]:
        """Readings of the last tenth of the time; none of a sensor that stopped before."""
        since = self._ended - self.seconds / 10.0
        key = (series, device)
        return [value for value, at in zip(self.series.get(key, []), self.times.get(key, [])) if at >= since]

    def share(self, series: str, device: str) -> float | None:
        """Share of the load that the readings stand for; None for a sensor that the device does not have."""
        times = self._times(series, device)
        if not times:
            return None
        known = sum(later - earlier for earlier, later in self._spans(times))
        return min(1.0, known / self.seconds) if self.seconds > 0 else 1.0

    def sampled(self) -> dict[str, dict[str, float]]:
        """By device: seconds that its readings stand for in each throttle state."""
        found: dict[str, dict[str, float]] = {}
        for device, states in self._states.items():
            spent = found.setdefault(device, {})
            for (begin, end), (_, state) in zip(self._spans([at for at, _ in states]), states):
                spent[state] = spent.get(state, 0.0) + end - begin
        return found

    def drop_spike(self, series: str, device: str) -> str:
        """Drops one reading that cannot be a temperature; returns a sentence about it, "" if there is none.

        Two such readings are no accident, nor is one while the driver throttles for heat: then all of them count.
        """
        values, times = self.series.get((series, device), []), self.times.get((series, device), [])
        sign = _HOTTER[series]
        spikes = [
            place
            for place in range(1, len(values) - 1)
            if abs(values[place - 1] - values[place + 1]) <= ALIKE_C
            and min(sign * (values[place] - values[place + near]) for near in (-1, 1)) >= SPIKE_C
        ]
        if len(spikes) != 1:
            return ""
        (place,) = spikes
        around = [state for at, state in self._states.get(device, ()) if abs(at - times[place]) <= self._hold_s()]
        if any("thermal" in state for state in around):
            return ""
        before, odd, after = values[place - 1 : place + 2]
        del values[place], times[place]
        return f"one reading of {odd:g} °C between {before:g} and {after:g} °C is left out"

    def drop(self, series: str, device: str) -> None:
        """Forget a sensor."""
        self.series.pop((series, device), None)
        self.times.pop((series, device), None)

    def _times(self, series: str, device: str) -> Sequence[float]:
        if series == "throttle":
            return [at for at, _ in self._states.get(device, ())]
        return self.times.get((series, device), ())

    def _spans(self, times: Sequence[float]) -> list[tuple[float, float]]:
        """The time that each reading stands for: half way to its neighbours, up to the limit."""
        half = self._hold_s() / 2.0
        middles = [(earlier + later) / 2.0 for earlier, later in zip(times, times[1:])]
        begins, ends = [self._began, *middles], [*middles, self._ended]
        return [(max(begin, at - half), min(end, at + half)) for begin, at, end in zip(begins, times, ends)]

    def _hold_s(self) -> float:
        if self._paced or len(self._ticks) < 2:
            return HOLD_SPACINGS * self._interval_s
        ticks = [self._began, *self._ticks, self._ended]
        return HOLD_SPACINGS * max(self._interval_s, *(later - earlier for earlier, later in zip(ticks, ticks[1:])))


def frozen(record: Record, cooling: Record, device: str) -> dict[str, str]:
    """Sensors of a device that do not move, with the evidence."""
    found = {}
    power = record.series.get(("power", device), [])
    if len(power) >= FROZEN_FROM and len(set(power)) == 1:
        found["power"] = f"{len(power)} readings of {power[0]:g} W, none of which differs from another"
    for series in STEADY_SERIES:
        hot, cool = record.series.get((series, device), []), cooling.series.get((series, device), [])
        if min(len(hot), len(cool)) >= FROZEN_FROM and len({*hot, *cool}) == 1:
            found[series] = f"{hot[0]:g} °C in all {len(hot) + len(cool)} readings, under load and after it"
    return found
