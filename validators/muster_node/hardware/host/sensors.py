"""Readings of the sensors this machine has: temperatures, power, clocks, utilisation, throttling, fans.

A sensor that is not there yields nothing: a missing sensor is not a healthy reading.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator

from muster_node.hardware.host import parse
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import Clock, Sample

_CPU = "/sys/devices/system/cpu"
_HWMON = "/sys/class/hwmon"
_RAPL = "/sys/class/powercap"
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")  # hwmon drivers of CPU dies
_INLET = re.compile(r"\b(inlet|intake|ambient|front)\b", re.IGNORECASE)
"""hwmon's labels of the air that comes in. On most servers only the BMC has this sensor."""


POSSIBLE_C = (0.0, 150.0)
"""°C that a sensor of a running machine reads, ends excluded: 0 °C and 255 °C are what one that is gone reads as."""


@dataclasses.dataclass(frozen=True)
class _Paths:
    """Where this machine's sensors are, found once: looking for them at every reading would cost more than reading."""

    temperature: list[str]
    inlet: list[str]
    energy: list[str]
    clock: dict[str, str]
    throttle: dict[str, str]
    fan: list[str]


class HostSensors:
    """Reads all sensors; remembers the previous reading of cumulative ones (energy, ticks, throttle events)."""

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._paths = _find(files)
        self._energy: dict[str, tuple[float, float]] = {}
        self._ticks: dict[str, tuple[int, int]] = {}
        self._throttles: dict[str, float] = {}

    def read(self) -> Iterator[Sample]:
        """One reading of everything there is. Rates (power, utilisation, throttling) start with the second call."""
        yield from self._temperatures()
        yield from self._power()
        yield from self._clocks()
        yield from self._utilisation()
        yield from self._throttling()
        yield from self._fans()
        yield Sample("load", "node", "count", value=os.getloadavg()[0])

    def _temperatures(self) -> Iterator[Sample]:
        """The hottest CPU die, and the hottest inlet air."""
        for series, paths in (("temperature", self._paths.temperature), ("inlet_temperature", self._paths.inlet)):
            millidegrees = [self._files.number(path) for path in paths]
            known = [value / 1000.0 for value in millidegrees if value is not None]
            if known := [celsius for celsius in known if POSSIBLE_C[0] < celsius < POSSIBLE_C[1]]:
                yield Sample(series, "node", "°C", value=max(known))

    def _power(self) -> Iterator[Sample]:
        watts, now = [], self._clock.now()
        for path in self._paths.energy:
            energy = self._files.number(path + "/energy_uj")
            if energy is None:
                continue
            before = self._energy.get(path)
            self._energy[path] = (now, energy)
            if before is None or now <= before[0]:
                continue
            wrapped = self._files.number(path + "/max_energy_range_uj") or 0.0
            used = energy - before[1] + (wrapped if energy < before[1] else 0.0)
            watts.append(used / 1e6 / (now - before[0]))
        if watts:
            yield Sample("power", "node", "W", value=sum(watts))

    def _clocks(self) -> Iterator[Sample]:
        for cpu, path in self._paths.clock.items():
            khz = self._files.number(path)
            if khz:
                yield Sample("clock", cpu, "MHz", value=khz / 1000.0)

    def _utilisation(self) -> Iterator[Sample]:
        ticks = parse.parse_proc_stat(self._files.text("/proc/stat"))
        for device, (busy, total) in ticks.items():
            before = self._ticks.get(device)
            if before is not None and total > before[1]:
                share = (busy - before[0]) / (total - before[1])
                yield Sample("utilisation", device, "%", value=100.0 * max(0.0, share))
        self._ticks = ticks

    def _throttling(self) -> Iterator[Sample]:
        for cpu, path in self._paths.throttle.items():
            events = self._files.number(path)
            if events is None:
                continue
            before = self._throttles.get(cpu, events)
            self._throttles[cpu] = events
            yield Sample("throttle", cpu, "state", state="hw_thermal" if events > before else "none")

    def _fans(self) -> Iterator[Sample]:
        duties = [self._files.number(path) for path in self._paths.fan]
        known = [duty / 255.0 * 100.0 for duty in duties if duty is not None]
        if known:
            yield Sample("fan", "node", "%", value=max(known))


def _find(files: Files) -> _Paths:
    cpus = [name for name in files.names(_CPU, "cpu[0-9]*") if name[3:].isdigit()]
    return _Paths(
        temperature=list(_temperature_paths(files)),
        inlet=list(_inlet_paths(files)),
        energy=[_RAPL + "/" + name for name in files.names(_RAPL) if _is_package(files, name)],
        clock=_present(files, cpus, "cpufreq/scaling_cur_freq"),
        throttle=_present(files, cpus, "thermal_throttle/core_throttle_count"),
        fan=[
            f"{_HWMON}/{chip}/{pwm}"
            for chip in files.names(_HWMON)
            for pwm in files.names(_HWMON + "/" + chip, "pwm[0-9]")
        ],
    )


def _is_package(files: Files, name: str) -> bool:
    return files.text(f"{_RAPL}/{name}/name").startswith("package")


def _present(files: Files, cpus: list[str], item: str) -> dict[str, str]:
    paths = {cpu: f"{_CPU}/{cpu}/{item}" for cpu in cpus}
    return {cpu: path for cpu, path in paths.items() if files.exists(path)}


def _temperature_paths(files: Files) -> Iterator[str]:
    chips = [chip for chip in files.names(_HWMON) if files.text(f"{_HWMON}/{chip}/name") in _CPU_SENSORS]
    for chip in chips:
        for item in files.names(_HWMON + "/" + chip, "temp*_input"):
            yield f"{_HWMON}/{chip}/{item}"
    if not chips:
        for zone in files.names("/sys/class/thermal", "thermal_zone*"):
            base = f"/sys/class/thermal/{zone}/"
            if files.text(base + "type") in ("x86_pkg_temp", "cpu-thermal", "cpu_thermal"):
                yield base + "temp"


def _inlet_paths(files: Files) -> Iterator[str]:
    for chip in files.names(_HWMON):
        for label in files.names(_HWMON + "/" + chip, "temp*_label"):
            path = f"{_HWMON}/{chip}/{label}"
            if _INLET.search(files.text(path)):
                yield path.replace("_label", "_input")
