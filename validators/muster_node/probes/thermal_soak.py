"""Load for a set time with the sensors read meanwhile: temperatures, clocks, power, throttling and fans under load.

The load never waits for a sensor. The share of the time that each device was busy, and the share of it that the
readings of each device's sensors stand for, are reported with the rest: without them a maximum or a time of 0 s means
nothing.
The rate of the load is reported too: a machine without sensors (most virtual ones) shows throttling as a falling rate.
"""

from __future__ import annotations

import functools
from statistics import mean
from typing import Any, NamedTuple

from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import NOT_SUPPORTED, Device, Worker
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.common import best_devices, drop_percent, median, seed_of, spread
from muster_node.workloads.each_device import error_of, on_each
from muster_node.workloads.products.timed import BLOCK_S, BUSY_BLOCK_S, least_s, normal_operands, products_in
from muster_node.workloads.under_load import cpu_shares
from muster_node.workloads.under_load.cooling import cooldown_constant, resistance_of_fall, time_to_steady
from muster_node.workloads.under_load.gpus import throttled
from muster_node.workloads.under_load.sensors import STEADY_SERIES, Record, Series, frozen

_SIZES = {"cpu": 512, "gpu": 8192}
_DTYPES = {"cpu": "fp32", "gpu": "bf16"}
_GIGA = {"cpu": 1e9, "gpu": 1e12}
_BLOCKS_S = {"cpu": BLOCK_S["cpu"], "gpu": BUSY_BLOCK_S}
_WINDOWS = 30
_WINDOW_MIN_S = 0.1
_WATCHED = ("temperature", "hbm_temperature", "thermal_margin", "power", "clock", "throttle")
"""Sensors whose readings are counted, of those that a device has."""

_TOO_SHORT = "the soak was too short"


class ThermalSoak(Probe):
    """Sustained load with telemetry."""

    name = "thermal_soak"
    stage = "thermal"
    doc = "Temperatures, clocks, power and throttling under sustained load"
    params = {
        "seconds": Param(60.0, "how long to load, in seconds of the hardware's clock"),
        "interval_s": Param(1.0, "how often sensors are read"),
        "settle": Param(0.0, "share of the soak at its start that means and medians leave out"),
        "cooldown_s": Param(0.0, "how long to read sensors after the load; 0: not at all"),
    }
    metrics = {
        "temperature_max": Metric("°C", "hottest reading"),
        "hbm_temperature_max": Metric("°C", "hottest reading of GPU memory"),
        "thermal_margin": Metric("°C", "smallest distance to the device's own slowdown temperature"),
        "hbm_margin": Metric("°C", "smallest distance of GPU memory to the device's own limit"),
        "hbm_gradient": Metric("°C", "memory temperature less core temperature, settled means"),
        "time_to_steady": Metric(
            "s", "from the load's start until the temperature stays within 1 °C of its settled mean"
        ),
        "cooldown_constant": Metric("s", "time constant of an exponential fitted to the temperature after the load"),
        "thermal_resistance": Metric(
            "°C/W",
            "(temperature − inlet) / power, means; with method=cool-down, where the node reads no inlet: "
            "fall of temperature / fall of power after the load",
        ),
        "clock_median": Metric("MHz", "median clock"),
        "power_mean": Metric("W", "mean power"),
        "throttle_time": Metric("s", "time spent throttled, by reason", on="cpu"),
        "fan_max": Metric("%", "fastest fan"),
        "fan_speed": Metric("RPM", "slowest reading of a fan, where the machine reports single fans"),
        "inlet_temperature": Metric("°C", "median inlet temperature"),
        "load_share": Metric("%", "share of the soak in which the device was busy"),
        "sensor_share": Metric("%", "share of the soak that the readings stand for, of the worst sensor"),
        "gpu_lost": Metric("bool", "whether the GPU fell off the bus or stopped answering during the soak"),
        "soak_rate": Metric("GFLOPS", "median rate of the load", "TFLOPS"),
        "soak_rate_drop": Metric("%", "how much lower the rate is in the last third than in the first"),
        **cpu_shares.METRICS,
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Load every device of the best kind and read every sensor during the load."""
        torch = require_torch()
        hardware, devices = context.hardware, best_devices(context.hardware)
        context.progress("soaking {} for {:.0f} s".format(", ".join(d.id for d in devices), context.params["seconds"]))
        record = _record(context)
        with hardware.loading(devices):
            soaked = on_each(
                hardware,
                devices,
                functools.partial(_soak, torch, context),
                lambda: record.add(hardware.telemetry()),
                context.params["interval_s"],
                context.params["seconds"],
            )
        record.end()
        for device, result in zip(devices, soaked):
            _emit_load(context, device, result)
            if device.kind == "gpu":
                _emit_lost(context, device, error_of(result), record)
        cpu_shares.emit_cpu_shares(context)
        cooling = _cool_down(context)
        _emit_sensor_shares(context, devices, record, cooling)
        summarise(context, record)
        _resistances(context, devices, record, cooling)
        _emit_throttled(context, record)
        whole = [result for result in soaked if not error_of(result)]
        if whole:
            _settling(context, record, min(each.began for each in whole))
        _cooling(context, record, cooling)


def _record(context: Context) -> Record:
    hardware = context.hardware
    return Record(hardware.clock.now, context.params["interval_s"], paced=not hardware.simulated)


def _emit_load(context: Context, device: Device, result: Any) -> None:
    """Rate and share of time under load; a device on which PyTorch raised an error has neither."""
    emit, error = context.emit, error_of(result)
    if error:
        for metric in ("soak_rate", "soak_rate_drop", "load_share"):
            emit(metric, device.id, note=error)
        return
    rates, samples = result.rates, len(result.rates)
    emit("soak_rate", device.id, value=median(rates), samples=samples, spread=spread(rates))
    drop = drop_percent(rates)
    emit("soak_rate_drop", device.id, value=drop, samples=samples, note="" if drop is not None else _TOO_SHORT)
    if context.hardware.simulated:
        # The simulated clock outruns the processor that computes for the GPU.
        emit("load_share", device.id, note="not measured on simulated hardware")
    else:
        emit("load_share", device.id, value=min(100.0, 100.0 * result.busy_s / (result.ended - result.began)))


def _emit_lost(context: Context, gpu: Device, error: str, record: Record) -> None:
    """A GPU that the driver calls lost, or that failed and reports no sensor any more, is lost.

    One that never reported any may be hidden from this user, which is no loss.
    """
    reported = any(device == gpu.id for _, device in record.series)
    silent = error and reported and all(sample.device != gpu.id for sample in context.hardware.telemetry())
    if context.hardware.lost(gpu) or silent:
        context.emit("gpu_lost", gpu.id, value=1.0, note=error or "NVML: the GPU is lost, or needs a reset")
    else:
        context.emit("gpu_lost", gpu.id, value=None if error else 0.0, note=error)


def _emit_sensor_shares(context: Context, devices: list[Device], record: Record, cooling: Record) -> None:
    """Of the sensors that a device has, the one whose readings stand for the least time; a stuck one gave none."""
    for device in devices:
        stuck = frozen(record, cooling, device.id) if device.kind == "gpu" else {}
        shares = {series: share for series in _WATCHED if (share := record.share(series, device.id)) is not None}
        for series in stuck:
            record.drop(series, device.id)
        if stuck:
            note = "; ".join(f"{series} is stuck: {evidence}" for series, evidence in stuck.items())
            context.emit("sensor_share", device.id, value=0.0, note=note)
        elif shares:
            least = min(shares, key=lambda series: shares[series])
            note = f"{least}: readings stand for {shares[least] * record.seconds:.0f} of {record.seconds:.0f} s"
            context.emit("sensor_share", device.id, value=100.0 * shares[least], note=note)
        elif device.kind == "gpu":
            context.emit("sensor_share", device.id, value=0.0, note="no sensor gave a reading")


def _emit_throttled(context: Context, record: Record) -> None:
    """For each device that reports a throttle state, but GPUs, which the agent watches (``gpu_watch``)."""
    gpus = {device.id for device in context.hardware.devices("gpu")}
    for device, states in sorted(record.sampled().items()):
        for found in throttled(device, {}, states, record.seconds) if device not in gpus else ():
            context.emit("throttle_time", device, value=found.value, labels=found.labels, note=found.note)


def _cool_down(context: Context) -> Record:
    """Readings after the load, for ``cooldown_s``."""
    clock = context.hardware.clock
    record, end = _record(context), clock.now() + context.params["cooldown_s"]
    if context.params["cooldown_s"]:
        context.progress("cooling down for {:.0f} s".format(context.params["cooldown_s"]))
    while clock.now() < end:
        record.add(context.hardware.telemetry())
        clock.sleep(context.params["interval_s"])
    return record


def summarise(context: Context, record: Record) -> None:
    """Emit what the record holds; nothing of a series that the machine does not have."""
    left_out = {key: record.drop_spike(*key) for key in record.series if key[0] in STEADY_SERIES and key[1] != "node"}
    steady = {key: _steady(values, context.params["settle"]) for key, values in record.series.items()}
    for (series, device), values in sorted(record.series.items()):
        late, count, odd = steady[series, device], len(values), left_out.get((series, device), "")
        if series == "temperature":
            context.emit("temperature_max", device, value=max(values), samples=count, note=odd)
        elif series == "hbm_temperature":
            context.emit("hbm_temperature_max", device, value=max(values), samples=count, note=odd)
        elif series in ("thermal_margin", "hbm_margin"):
            note = "; ".join(filter(None, (record.notes.get((series, device)), odd)))
            context.emit(series, device, value=min(values), samples=count, note=note)
        elif series == "clock":
            context.emit("clock_median", device, value=median(late), samples=count, spread=spread(late))
        elif series == "power":
            context.emit("power_mean", device, value=mean(late), samples=len(late))
        elif series == "fan":
            context.emit("fan_max", device, value=max(values), samples=count)
        elif series == "fan_speed":
            context.emit("fan_speed", device, value=min(values), samples=count)
        elif series == "inlet_temperature":
            context.emit("inlet_temperature", device, value=median(late), samples=count)
    _memory(context, steady)


def _steady(values: list[float], settle: float) -> list[float]:
    return values[_settled_from(values, settle) :]


def _settled_from(values: list[float], settle: float) -> int:
    """Index of the first settled reading; 0 if none would be left."""
    place = int(settle * len(values))
    return place if place < len(values) else 0


def _memory(context: Context, steady: Series) -> None:
    """Memory against core temperature, and that a device with a memory temperature has no limit for it."""
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
    """For every device with a temperature under load, so that a sensor that stopped since is missed."""
    for series, device in sorted(record.series):
        if series == "temperature":
            values = cooling.series[series, device]
            value, note = cooldown_constant(cooling.times[series, device], values)
            if not context.params["cooldown_s"]:
                note = "no cool-down was requested"
            context.emit("cooldown_constant", device, value=value, samples=len(values), note=note)


def _resistances(context: Context, devices: list[Device], record: Record, cooling: Record) -> None:
    """By means: the median power of a device that throttles on and off belongs to no temperature.

    Servers report their inlet to the BMC alone, so most nodes read none: there the cool-down gives the figure, under a
    label of its own, since the two are not the same (docs/science.md#thermal-checks).
    """
    inlet = _late(context, record, "inlet_temperature", "node")
    with_power = {device for series, device in record.series if series == "power"}
    for device in sorted(with_power | {device.id for device in devices if device.kind == "gpu"}):
        temperature, power = (_late(context, record, series, device) for series in ("temperature", "power"))
        value, note, labels = None, "the node reads no power or no temperature of it", {}
        if inlet and temperature and power and mean(power) > 0:
            value, note = (mean(temperature) - mean(inlet)) / mean(power), ""
        elif not inlet:
            labels = {"method": "cool-down"}
            cooled = (cooling.last("temperature", device), cooling.last("power", device))
            value, note = resistance_of_fall((temperature, power), cooled)
        context.emit("thermal_resistance", device, value=value, labels=labels, samples=len(power), note=note)


def _late(context: Context, record: Record, series: str, device: str) -> list[float]:
    return _steady(record.series.get((series, device), []), context.params["settle"])


class _Soaked(NamedTuple):
    """When the load began and ended (s), device seconds of work, and rates by window (GFLOPS; GPUs TFLOPS)."""

    began: float
    ended: float
    busy_s: float
    rates: list[float]


def _soak(torch: Any, context: Context, worker: Worker) -> _Soaked:
    """The work of one device: products without a pause."""
    clock, kind, seconds = context.hardware.clock, worker.device.kind, context.params["seconds"]
    compute = context.hardware.compute(worker.device)
    size, seed = _SIZES[kind], seed_of(context.seed, worker.device.id)
    shape = (size, size, size)
    a, b = normal_operands(torch, compute, _DTYPES[kind], shape, seed)

    def product() -> None:
        compute.matmul(a, b, nominal=shape)

    def block(products: int) -> float:
        with compute.timer() as timing:
            for _ in range(products):
                product()
        return timing.seconds

    block(1)  # the first product allocates and plans
    worker.ready()  # what another GPU's start held up would make short blocks, with a rest after each
    per_block = products_in(_BLOCKS_S[kind], least_s(compute, product))
    window = max(_WINDOW_MIN_S, seconds / _WINDOWS)
    rates: list[float] = []
    began, total = clock.now(), 0.0
    end = began + seconds
    while not rates or clock.now() < end:
        until, products, busy = clock.now() + window, 0, 0.0
        while not products or clock.now() < until:
            busy, products = busy + block(per_block), products + per_block
        rates.append(2.0 * size**3 * products / busy / _GIGA[kind])
        total += busy
    return _Soaked(began, clock.now(), total, rates)
