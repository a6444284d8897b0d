"""A clock that tests wind themselves, and what tests do to a machine under it."""

from __future__ import annotations

import threading
from typing import Any

from muster_node.hardware.seam import Clock, Device
from muster_simulator import SimulatedHardware


class WoundClock(Clock):
    """A clock that moves only in ``sleep``, which threads of GPUs call at once."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self._lock = threading.Lock()

    def now(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds


def soak(hardware: SimulatedHardware, seconds: float, devices: list[Device] | None = None) -> None:
    """Load GPUs (all, or those given) for ``seconds`` of the machine's clock."""
    with hardware.loading(hardware.devices("gpu") if devices is None else devices):
        hardware.clock.sleep(seconds)
        list(hardware.telemetry())


def reading(hardware: SimulatedHardware, series: str, device: str) -> Any:
    """The present reading of one sensor."""
    found = [s for s in hardware.telemetry() if (s.series, s.device) == (series, device)]
    assert len(found) == 1, (series, device)
    return found[0].state if found[0].value is None else found[0].value


def fact(hardware: SimulatedHardware, name: str, device: str) -> Any:
    """One inventory fact's value."""
    found = [f for f in hardware.inventory() if (f.name, f.device) == (name, device)]
    assert len(found) == 1, (name, device)
    return found[0].text if found[0].value is None else found[0].value


def throttled(hardware: SimulatedHardware, device: str) -> dict[str, float]:
    """Seconds in each throttle state since the machine was built."""
    return {
        fact.labels["reason"]: float(fact.value or 0.0)
        for fact in hardware.counters()
        if fact.name == "throttle_time" and fact.device == device
    }
