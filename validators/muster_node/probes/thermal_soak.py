"""Load for a set time with the sensors read beside it: temperatures, clocks, power, throttling and fans under load.

Only sensors that are there are reported; the judge tells a promised sensor that is missing. The rate of the load itself
is reported too: a machine that hides its sensors (most virtual ones) still shows throttling as a falling rate.
"""

from __future__ import annotations

import collections
from statistics import mean
from typing import Any, Dict, List, Tuple

from muster_node.hardware.cpu_compute import require_torch
from muster_node.hardware.seam import Hardware, Sample, Worker
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.probes._shared import best_devices, drop_percent, median, seed_of, spread

_SIZES = {"cpu": 512, "gpu": 8192}
_DTYPES = {"cpu": "float32", "gpu": "bfloat16"}
_GIGA = {"cpu": 1e9, "gpu": 1e12}
_WINDOWS = 30
_WINDOW_MIN_S = 0.1

Series = Dict[Tuple[str, str], List[float]]


class ThermalSoak(Probe):
    """Sustained load with telemetry beside it."""

    name = "thermal_soak"
    stage = "thermal"
    doc = "Temperatures, clocks, power and throttling under sustained load"
    params = {
        "seconds": Param(60.0, "how long to load, in seconds of the hardware's clock"),
        "interval_s": Param(1.0, "how often sensors are read"),
        "settle": Param(0.0, "share of the soak at its start that means and medians leave out"),
    }
    metrics = {
        "temperature_max": Metric("°C", "hottest reading"),
        "hbm_temperature_max": Metric("°C", "hottest reading of GPU memory"),
        "thermal_margin": Metric("°C", "smallest distance to the slowdown temperature that the device itself names"),
        "thermal_resistance": Metric("°C/W", "(temperature − inlet) / power, means"),
        "clock_median": Metric("MHz", "median clock"),
        "clock_drop": Metric("%", "how much lower the clock is in the last third than in the first"),
        "power_mean": Metric("W", "mean power"),
        "throttle_time": Metric("s", "time spent throttled, by reason"),
        "fan_max": Metric("%", "fastest fan"),
        "fan_speed": Metric("RPM", "slowest reading of a fan, where the machine shows its fans one by one"),
        "inlet_temperature": Metric("°C", "median temperature of the air that comes in"),
        "soak_rate": Metric("GFLOPS", "median rate of the load", "TFLOPS"),
        "soak_rate_drop": Metric("%", "how much lower the rate is in the last third than in the first"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Load every device of the best kind and read every sensor meanwhile."""
        torch = require_torch()
        hardware, devices = context.hardware, best_devices(context.hardware)
        record = Record(hardware.clock.now)
        context.progress("soaking %s for %.0f s" % (", ".join(d.id for d in devices), context.params["seconds"]))

        def tick() -> None:
            record.add(list(hardware.telemetry()))

        before = _throttle_counters(hardware)
        with hardware.loading(devices):
            rates = hardware.at_once(devices, _Soaking(torch, context), tick, context.params["interval_s"])
        record.count(before, _throttle_counters(hardware))
        for device, windows in zip(devices, rates):
            samples = len(windows)
            context.emit("soak_rate", device.id, value=median(windows), samples=samples, spread=spread(windows))
            drop = drop_percent(windows)
            note = "" if drop is not None else "the soak was too short"
            context.emit("soak_rate_drop", device.id, value=drop, samples=samples, note=note)
        summarise(context, record)


class Record:
    """Numeric series and times in states, as the sensors told them during the soak."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self._last: Dict[str, float] = {}
        self.series: Series = collections.defaultdict(list)
        self.throttled: Dict[str, Dict[str, float]] = {}

    def add(self, samples: List[Sample]) -> None:
        """Add one reading of all sensors. A state counts for the time since the device's previous reading."""
        now = self._now()
        for sample in samples:
            if sample.series == "throttle" and sample.state is not None:
                times = self.throttled.setdefault(sample.device, {})
                times[sample.state] = times.get(sample.state, 0.0) + now - self._last.get(sample.device, now)
                self._last[sample.device] = now
            elif sample.value is not None:
                self.series[sample.series, sample.device].append(sample.value)

    def count(self, before: Dict[Tuple[str, str], float], after: Dict[Tuple[str, str], float]) -> None:
        """Let the device's own throttle counters overrule what readings caught of it, where it has them."""
        for (device, reason), seconds in after.items():
            if (device, reason) in before:
                self.throttled.setdefault(device, {})[reason] = seconds - before[device, reason]


def _throttle_counters(hardware: Hardware) -> Dict[Tuple[str, str], float]:
    return {
        (fact.device, fact.labels["reason"]): fact.value
        for fact in hardware.counters()
        if fact.name == "throttle_time" and fact.value is not None
    }


REASONS = ("sw_power_cap", "hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake")


def summarise(context: Context, record: Record) -> None:
    """Emit what the record holds; of a series that is not there, nothing."""
    steady = {key: _steady(values, context.params["settle"]) for key, values in record.series.items()}
    for (series, device), values in sorted(record.series.items()):
        late, count = steady[series, device], len(values)
        if series == "temperature":
            context.emit("temperature_max", device, value=max(values), samples=count)
        elif series == "hbm_temperature":
            context.emit("hbm_temperature_max", device, value=max(values), samples=count)
        elif series == "thermal_margin":
            context.emit("thermal_margin", device, value=min(values), samples=count)
        elif series == "clock":
            context.emit("clock_median", device, value=median(late), samples=count, spread=spread(late))
            drop = drop_percent(late)
            note = "" if drop is not None else "the soak was too short"
            context.emit("clock_drop", device, value=drop, samples=count, note=note)
        elif series == "power":
            context.emit("power_mean", device, value=mean(late), samples=len(late))
        elif series == "fan":
            context.emit("fan_max", device, value=max(values), samples=count)
        elif series == "fan_speed":
            context.emit("fan_speed", device, value=min(values), samples=count)
        elif series == "inlet_temperature":
            context.emit("inlet_temperature", device, value=median(late), samples=count)
    _resistances(context, steady)
    for device, times in sorted(record.throttled.items()):
        for reason in sorted({*REASONS, *times} - {"none"}):
            context.emit("throttle_time", device, value=times.get(reason, 0.0), labels={"reason": reason})


def _steady(values: List[float], settle: float) -> List[float]:
    return values[int(settle * len(values)) :] or values


def _resistances(context: Context, steady: Series) -> None:
    """By means: a device that throttles on and off has two powers, and a median of them belongs to no temperature."""
    inlet = steady.get(("inlet_temperature", "node"))
    for (series, device), power in sorted(steady.items()):
        temperature = steady.get(("temperature", device))
        if series == "power" and inlet and temperature and mean(power) > 0:
            value = (mean(temperature) - mean(inlet)) / mean(power)
            context.emit("thermal_resistance", device, value=value, samples=len(power))


class _Soaking:
    """The work of one device: products without a pause; rates window by window, in the unit of its kind."""

    def __init__(self, torch: Any, context: Context) -> None:
        self._torch, self._hardware = torch, context.hardware
        self._seconds, self._seed = context.params["seconds"], context.seed

    def __call__(self, worker: Worker) -> List[float]:
        torch, clock, kind = self._torch, self._hardware.clock, worker.device.kind
        compute = self._hardware.compute(worker.device)
        size = _SIZES[kind]
        generator = torch.Generator(device=compute.torch_device).manual_seed(seed_of(self._seed, worker.device.id))
        a, b = (
            torch.randn(compute.physical(size, size), generator=generator, device=compute.torch_device).to(
                getattr(torch, _DTYPES[kind])
            )
            for _ in range(2)
        )
        window = max(_WINDOW_MIN_S, self._seconds / _WINDOWS)
        rates: List[float] = []
        worker.ready()
        end = clock.now() + self._seconds
        while not rates or clock.now() < end:
            until, products, busy = clock.now() + window, 0, 0.0
            while not products or clock.now() < until:
                with compute.timer() as timing:
                    for _ in range(4):
                        compute.matmul(a, b, nominal=(size, size, size))
                products, busy = products + 4, busy + timing.seconds
            rates.append(2.0 * size**3 * products / busy / _GIGA[kind])
        return rates
