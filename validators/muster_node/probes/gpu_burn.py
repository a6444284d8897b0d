"""Burn-in of GPUs: all at once at full power, then in pulses, with the host's cores and memory loaded too.

Throughput is recorded over time; the host's error counters are read before and after, and the agent watches those of
the GPUs (``gpu_watch``). A GPU that stops answering under load is reported as lost, with its last readings; the others
go on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Device, Sample, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.workloads import host_load
from muster_node.workloads.common import drop_percent, median, precision_of, reason_of, seed_of, spread
from muster_node.workloads.products import pulses
from muster_node.workloads.products.timed import BUSY_BLOCK_S, normal_operands, products_in
from muster_node.workloads.under_load import counters

_TERA = 1e12
_LOOK_S = 5.0  # the agent records the sensors; these are for the note of a GPU that is lost
_HOST_MARGIN_S = 600.0  # by when the host's load ends by itself, should the GPUs' hang
_LAST_SERIES = ("temperature", "power", "clock")


class GpuBurn(Probe):
    """Sustained and pulsed matrix products on every GPU at the same time, and load for the host meanwhile."""

    name = "gpu_burn"
    stage = "burn_in"
    doc = "All GPUs at full load at once, steady and pulsed, and the host too: throughput, counters, settings"
    params = {
        "seconds": Param(600.0, "how long to burn steadily, in seconds of the node's clock"),
        "dtype": Param("bf16", "number format of the products"),
        "size": Param(8192, "m = n = k of the products"),
        "host_gib": Param(4.0, "GiB that the host's cores write and check, more where caches hold it; 0: no load"),
        **pulses.PARAMS,
    }
    metrics = {
        "burn_rate": Metric("TFLOPS", "median rate over the burn"),
        "burn_rate_drop": Metric("%", "median of the last third of the burn below that of the first third"),
        "burn_rate_per_clock": Metric("TFLOPS/GHz", "median rate by the clock it was reached at"),
        "gpu_lost": Metric("bool", "whether the GPU stopped answering during the burn"),
        **counters.METRICS,
        **host_load.METRICS,
        **pulses.METRICS,
    }
    needs = ("torch", "gpu")

    @classmethod
    def timed_s(cls, params: Mapping[str, Any], devices: int) -> float:
        """The steady burn, then both patterns of pulses."""
        return float(params["seconds"] + len(pulses.PATTERNS) * params["pulse_s"])

    def run(self, context: Context) -> None:
        """Burn, then report. Raises Skip where there is no GPU or none that multiplies the format."""
        torch, hardware, dtype = require_torch(), context.hardware, context.params["dtype"]
        gpus = hardware.devices("gpu")
        if not gpus:
            raise Skip("there is no GPU that answers")
        error_counters, last = counters.Counters(hardware), _LastReadings()
        burn, seconds = _Burn(torch, context), context.params["seconds"]
        with _host_load(context, torch, gpus) as host, precision_of(torch, dtype), hardware.loading(gpus):
            context.progress(f"{dtype} products on {len(gpus)} GPUs for {seconds:g} s")
            burns = hardware.at_once(gpus, burn, lambda: last.add(hardware.telemetry()), _LOOK_S, _hung, seconds)
            if not any(burns):
                raise Skip(f"no GPU here multiplies {dtype}")
            lost = {gpu: burned.error for gpu, burned in zip(gpus, burns) if burned and burned.error}
            remaining = [gpu for gpu, burned in zip(gpus, burns) if burned and gpu not in lost]
            lost.update(pulses.pulse(context, remaining, burn.operands))
        for gpu, burned in zip(gpus, burns):
            if burned is not None:
                _emit_lost(context, gpu, lost.get(gpu, ""), last)
                _emit_rates(context, gpu, burned)
        error_counters.emit(context)
        host_load.emit_burns(context, host)


def _host_load(context: Context, torch: Any, gpus: list[Device]) -> AbstractContextManager[host_load.Burns]:
    """The host's load: all cores, but as many as drive the GPUs; each run leaves out others."""
    params = context.params
    cores = context.hardware.devices("core") if params["host_gib"] else []
    none = "" if cores else "no core of this machine is loaded"
    context.emit("host_cores", "node", value=len(cores) if cores else None, note=none)
    first = context.seed % max(1, len(cores))
    cores = (cores[first:] + cores[:first])[len(gpus) :]
    limit_s = params["seconds"] + len(pulses.PATTERNS) * params["pulse_s"] + _HOST_MARGIN_S
    return host_load.burning(context, torch, cores, params["host_gib"], limit_s)


def _emit_lost(context: Context, gpu: Device, how: str, last: _LastReadings) -> None:
    """A GPU is lost if the driver reports so, or if it failed and reports no sensor; other failures are no loss."""
    lost = context.hardware.lost(gpu)
    if how and not lost:
        lost = all(sample.device != gpu.id for sample in context.hardware.telemetry())
    notes = [how or ("NVML: the GPU is lost, or needs a reset" if lost else ""), last.of(gpu) if how or lost else ""]
    value = 1.0 if lost else None if how else 0.0
    context.emit("gpu_lost", gpu.id, value=value, note="; ".join(filter(None, notes)))


class _LastReadings:
    """The last reading of each GPU's sensors."""

    def __init__(self) -> None:
        self._read: dict[str, dict[str, str]] = {}

    def add(self, samples: Iterable[Sample]) -> None:
        """One reading of all sensors; a GPU without a reading keeps its last."""
        for sample in samples:
            if sample.series in _LAST_SERIES and sample.value is not None:
                self._read.setdefault(sample.device, {})[sample.series] = f"{sample.value:.0f} {sample.unit}"

    def of(self, gpu: Device) -> str:
        """As text."""
        read = self._read.get(gpu.id, {})
        return "last seen at " + ", ".join(read[series] for series in _LAST_SERIES if series in read) if read else ""


@dataclasses.dataclass
class _Burned:
    """One GPU's result: TFLOPS and TFLOPS/GHz block by block, and the error that ended it early, if any."""

    rates: list[float] = dataclasses.field(default_factory=list)
    per_ghz: list[float] = dataclasses.field(default_factory=list)
    error: str = ""


class _Burn:
    """The work of one GPU: blocks of products until the time is up."""

    def __init__(self, torch: Any, context: Context) -> None:
        self._torch, self._hardware, self._params, self._seed = torch, context.hardware, context.params, context.seed

    def __call__(self, worker: Worker) -> _Burned | None:
        compute = self._hardware.compute(worker.device)
        supported = compute.supports(self._params["dtype"])
        worker.ready()
        if not supported:
            return None
        burned, clock = _Burned(), self._hardware.clock
        start = clock.now()
        try:
            self._burn(compute, start + self._params["seconds"], burned)
        except RuntimeError as error:  # what PyTorch raises when a device is lost
            burned.error = f"lost under load after {clock.now() - start:.0f} s: {reason_of(error)}"
        return burned

    def _burn(self, compute: Compute, end: float, burned: _Burned) -> None:
        size = self._params["size"]
        a, b = self.operands(compute)
        products = 1
        while not burned.rates or self._hardware.clock.now() < end:
            with compute.timer() as timing:
                for _ in range(products):
                    compute.matmul(a, b, nominal=(size, size, size))
            rate = 2.0 * size**3 * products / timing.seconds / _TERA
            if products > 1:  # the single product that sizes the blocks is a warm-up
                burned.rates.append(rate)
                if timing.mean_clock_mhz:
                    burned.per_ghz.append(rate / (timing.mean_clock_mhz / 1000.0))
            products = max(2, products_in(BUSY_BLOCK_S, timing.seconds / products))

    def operands(self, compute: Compute) -> list[Any]:
        """Both factors, of random numbers: their power is that of real work."""
        size = self._params["size"]
        seed = seed_of(self._seed, compute.device.id)
        return normal_operands(self._torch, compute, self._params["dtype"], (size, size, size), seed)


def _hung(gpu: Device, why: str) -> _Burned:
    return _Burned(error=why)


def _emit_rates(context: Context, gpu: Device, burned: _Burned) -> None:
    """A GPU that was lost has no rate over the whole burn; the note has its rate until then."""
    rates, per_ghz, lost = burned.rates, burned.per_ghz, burned.error
    if not rates:
        context.emit("burn_rate", gpu.id, note=lost)
        return
    lost = lost and f"{lost}; {median(rates):.1f} TFLOPS until then"
    figures = (
        ("burn_rate", median(rates), spread(rates), ""),
        ("burn_rate_drop", drop_percent(rates), None, "too short a burn for thirds"),
        ("burn_rate_per_clock", median(per_ghz) if per_ghz else None, None, "the GPU reports no clock"),
    )
    for metric, value, width, absent in figures:
        note = lost or (absent if value is None else "")
        context.emit(metric, gpu.id, value=None if lost else value, samples=len(rates), spread=width, note=note)
