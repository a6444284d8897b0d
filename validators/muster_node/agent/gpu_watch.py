"""Reads states and counters of GPUs while probes run, and reports what the load did to them: the probe ``gpu_watch``.

In the agent, so that a probe that hangs, crashes or is killed costs none of it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Callable

from muster_node import contract
from muster_node.bounded import bounded
from muster_node.contract import Measurement
from muster_node.hardware.seam import Hardware
from muster_node.workloads.under_load.gpus import METRICS, Found, Reading, add, under_load

PROBE = "gpu_watch"
INTERVAL_S = 10.0
"""Seconds of the machine's clock between readings: about a hundred NVML calls for each GPU."""
PAUSE_S = 0.2
"""Real seconds after which that clock is looked at again; a simulated one may run faster."""
LAST_LIMIT_S = 60.0
"""For the first and the last reading: with eight GPUs that hang NVML gives up after 46 s."""
KEPT = 1000
"""Number of readings after which the interval doubles: of a run of equal readings three are kept, so only an unsteady
GPU has this many."""

Sampled = Callable[[], Mapping[str, Mapping[str, float]]]
"""Seconds in each throttle state by GPU, so far; or the most of these within a minute, by cause."""
Inlet = Callable[[], "tuple[float | None, int]"]
"""(median of the inlet temperatures so far in °C, number of readings)."""


class GpuWatch:
    """Watches from its start until ``finish``. ``sampled``: how long the sensors saw each throttle state; ``peaks``:
    how long at most within a minute.
    """

    def __init__(
        self, hardware: Hardware, sampled: Sampled, inlet: Inlet = lambda: (None, 0), peaks: Sampled = dict
    ) -> None:
        self._hardware, self._sampled, self._inlet, self._peaks = hardware, sampled, inlet, peaks
        self._gpus = [device.id for device in hardware.devices("gpu")]
        self._readings: list[Reading] = []
        self._interval_s, self._kept = INTERVAL_S, KEPT
        self._failure = ""
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gpu watch", daemon=True)

    def start(self) -> None:
        """Take the first reading, before any load; from then on, one after another."""
        if self._gpus:
            self._bounded_reading(lambda: None)
            self._thread.start()

    def finish(self, stop: Callable[[], str | None] = lambda: None) -> tuple[str, str, list[Measurement]]:
        """End the watch with a last reading: status and reason of the probe, and its measurements."""
        if not self._gpus:
            return contract.SKIPPED, "no GPU answers", []
        self._end.set()
        self._bounded_reading(stop)
        with self._lock:
            readings = list(self._readings)
        found = [_measurement(each) for each in under_load(readings, self._gpus, self._sampled())]
        for gpu, most in self._peaks().items():
            of = {cause: held for cause, held in sorted(most.items()) if cause != "none" and gpu in self._gpus}
            found += [_measurement(Found("throttle_peak", gpu, of[cause], labels={"reason": cause})) for cause in of]
        inlet_c, samples = self._inlet()
        if inlet_c is not None:
            found.append(_measurement(Found("inlet_temperature", "node", inlet_c, samples=samples)))
        if self._failure:
            return contract.CRASHED, self._failure, found
        return contract.COMPLETED, "", found

    def _bounded_reading(self, stop: Callable[[], str | None]) -> None:
        try:
            bounded("the reading of the GPUs' states", self._read, LAST_LIMIT_S, stop)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"[:300]

    def _read(self) -> None:
        at, facts = self._hardware.clock.now(), tuple(self._hardware.states())
        with self._lock:
            add(self._readings, Reading(at, facts))
            if len(self._readings) >= self._kept:
                self._interval_s, self._kept = 2.0 * self._interval_s, 2 * self._kept

    def _loop(self) -> None:
        last = self._hardware.clock.now()
        while not self._end.wait(PAUSE_S):
            if self._hardware.clock.now() - last < self._interval_s:
                continue
            try:
                self._read()
            except Exception as error:
                self._failure = f"{type(error).__name__}: {error}"[:300]
            last = self._hardware.clock.now()


def _measurement(found: Found) -> Measurement:
    unit = METRICS[found.metric].unit_on(found.device)
    return Measurement(
        PROBE, found.metric, found.device, unit, value=found.value, text=found.text, labels=found.labels,
        samples=found.samples, note=found.note[:500],
    )  # fmt: skip
