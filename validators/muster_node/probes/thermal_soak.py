"""Load for a set time with the sensors read beside it: temperatures, clocks, power, throttling and fans under load.

Only sensors that are there are reported; the judge tells a promised sensor that is missing. The rate of the load itself
is reported too: a machine that hides its sensors (most virtual ones) still shows throttling as a falling rate.
"""

from __future__ import annotations

import collections
from statistics import mean
from typing import Any, Dict, List, NamedTuple, Tuple

from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import NOT_SUPPORTED, Hardware, Sample, Worker
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.common import best_devices, drop_percent, median, seed_of, spread
from muster_node.workloads.cooling import cooldown_constant, time_to_steady

_SIZES = {"cpu": 512, "gpu": 8192}
_DTYPES = {"cpu": "float32", "gpu": "bfloat16"}
_GIGA = {"cpu": 1e9, "gpu": 1e12}
_WINDOWS = 30
_WINDOW_MIN_S = 0.1

Series = Dict[Tuple[str, str], List[float]]
"""(series, device) → readings, or the moments at which they were taken."""


class ThermalSoak(Probe):
    """Sustained load with telemetry beside it."""

    name = "thermal_soak"
    stage = "thermal"
    doc = "Temperatures, clocks, power and throttling under sustained load"
    params = {
        "seconds": Param(60.0, "how long to load, in seconds of the hardware's clock"),
        "interval_s": Param(1.0, "how often sensors are read"),
        "settle": Param(0.0, "share of the soak at its start that means and medians leave out"),
        "cooldown_s": Param(0.0, "how long to go on reading sensors once the load has ended; 0: not at all"),
    }
    metrics = {
        "temperature_max": Metric("°C", "hottest reading"),
        "hbm_temperature_max": Metric("°C", "hottest reading of GPU memory"),
        "thermal_margin": Metric("°C", "smallest distance to the slowdown temperature that the device itself names"),
        "hbm_margin": Metric("°C", "smallest distance of GPU memory to the limit that the device itself names"),
        "hbm_gradient": Metric("°C", "memory temperature less core temperature, settled means"),
        "time_to_steady": Metric(
            "s", "from the load's start until the temperature stays within 1 °C of its settled mean"
        ),
        "cooldown_constant": Metric("s", "time constant of an exponential fitted to the temperature after the load"),
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
            soaked = hardware.at_once(devices, _Soaking(torch, context), tick, context.params["interval_s"])
        record.count(before, _throttle_counters(hardware))
        cooling = _cool_down(context)
        for device, windows in zip(devices, (each.rates for each in soaked)):
            samples = len(windows)
            context.emit("soak_rate", device.id, value=median(windows), samples=samples, spread=spread(windows))
            drop = drop_percent(windows)
            note = "" if drop is not None else "the soak was too short"
            context.emit("soak_rate_drop", device.id, value=drop, samples=samples, note=note)
        summarise(context, record)
        _settling(context, record, min(each.began for each in soaked))
        _cooling(context, record, cooling)


class Record:
    """Numeric series and times in states, as the sensors told them during the soak."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self._last: Dict[str, float] = {}
        self.series: Series = collections.defaultdict(list)
        self.times: Series = collections.defaultdict(list)
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
                self.times[sample.series, sample.device].append(now)

    def count(self, before: Dict[Tuple[str, str], float], after: Dict[Tuple[str, str], float]) -> None:
        """Let the device's own throttle counters overrule what readings caught of it, where it has them."""
        for (device, reason), seconds in after.items():
            if (device, reason) in before:
                self.throttled.setdefault(device, {})[reason] = seconds - before[device, reason]


def _cool_down(context: Context) -> Record:
    """What the sensors tell after the load, for as long as the plan asks: nothing, where it asks for no time."""
    clock = context.hardware.clock
    record, end = Record(clock.now), clock.now() + context.params["cooldown_s"]
    if context.params["cooldown_s"]:
        context.progress("cooling down for %.0f s" % context.params["cooldown_s"])
    while clock.now() < end:
        record.add(list(context.hardware.telemetry()))
        clock.sleep(context.params["interval_s"])
    return record


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
        elif series in ("thermal_margin", "hbm_margin"):
            context.emit(series, device, value=min(values), samples=count)
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
    _memory(context, steady)
    for device, times in sorted(record.throttled.items()):
        for reason in sorted({*REASONS, *times} - {"none"}):
            context.emit("throttle_time", device, value=times.get(reason, 0.0), labels={"reason": reason})


def _steady(values: List[float], settle: float) -> List[float]:
    return values[_settled_from(values, settle) :]


def _settled_from(values: List[float], settle: float) -> int:
    """The place of the first reading that counts as settled: the first of all, where none would be left."""
    place = int(settle * len(values))
    return place if place < len(values) else 0


def _memory(context: Context, steady: Series) -> None:
    """How GPU memory lies to its core, and that a device which tells its temperature names no limit for it."""
    for (series, device), memory in sorted(steady.items()):
        core = steady.get(("temperature", device))
        if series == "hbm_temperature" and core:
            context.emit("hbm_gradient", device, value=mean(memory) - mean(core), samples=len(memory))
        if series == "hbm_temperature" and ("hbm_margin", device) not in steady:
            context.emit("hbm_margin", device, note=NOT_SUPPORTED)


def _settling(context: Context, record: Record, began: float) -> None:
    for (series, device), values in sorted(record.series.items()):
        if series == "temperature":
            settled_from = _settled_from(values, context.params["settle"])
            value, note = time_to_steady(record.times[series, device], values, began, settled_from)
            context.emit("time_to_steady", device, value=value, samples=len(values), note=note)


def _cooling(context: Context, record: Record, cooling: Record) -> None:
    """Of every device whose temperature was told under load: a sensor that has gone since is missed."""
    for series, device in sorted(record.series):
        if series == "temperature":
            values = cooling.series[series, device]
            value, note = cooldown_constant(cooling.times[series, device], values)
            if not context.params["cooldown_s"]:
                note = "the plan asks for no cool-down"
            context.emit("cooldown_constant", device, value=value, samples=len(values), note=note)


def _resistances(context: Context, steady: Series) -> None:
    """By means: a device that throttles on and off has two powers, and a median of them belongs to no temperature."""
    inlet = steady.get(("inlet_temperature", "node"))
    for (series, device), power in sorted(steady.items()):
        temperature = steady.get(("temperature", device))
        if series == "power" and temperature and mean(power) > 0:
            value = (mean(temperature) - mean(inlet)) / mean(power) if inlet else None
            note = "" if inlet else "no sensor that this node reads itself tells the air that comes in"
            context.emit("thermal_resistance", device, value=value, samples=len(power), note=note)


class _Soaked(NamedTuple):
    """When the load began, by the hardware's clock, and its rates window by window, in the unit of its kind."""

    began: float
    rates: List[float]


class _Soaking:
    """The work of one device: products without a pause."""

    def __init__(self, torch: Any, context: Context) -> None:
        self._torch, self._hardware = torch, context.hardware
        self._seconds, self._seed = context.params["seconds"], context.seed

    def __call__(self, worker: Worker) -> _Soaked:
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
        began = clock.now()
        end = began + self._seconds
        while not rates or clock.now() < end:
            until, products, busy = clock.now() + window, 0, 0.0
            while not products or clock.now() < until:
                with compute.timer() as timing:
                    for _ in range(4):
                        compute.matmul(a, b, nominal=(size, size, size))
                products, busy = products + 4, busy + timing.seconds
            rates.append(2.0 * size**3 * products / busy / _GIGA[kind])
        return _Soaked(began, rates)
