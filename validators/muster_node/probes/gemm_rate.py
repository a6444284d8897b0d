"""Rates of matrix products: on each core alone and on all together, or on all GPUs at once.

One block of products is timed after another, after a warm-up; the figure is the median block. On CPUs it is also
reported as a share of what clock and vector width could give with two fused multiply-add units a core, an assumption
that holds for server cores since 2017; a core that splits wide vectors (512 bits in two halves) reaches half of it at
most. On GPUs caches are flushed before each product.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Device, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.workloads.common import FORMATS, median, precision_of, seed_of, spread
from muster_node.workloads.each_device import error_of, on_each
from muster_node.workloads.products.timed import Products
from muster_node.workloads.under_load import cpu_shares

FMA_UNITS = 2
FLOP_PER_FMA = 2

DTYPES = {"cpu": ["fp64", "fp32", "bf16"], "gpu": ["bf16", "tf32", "fp8"]}
SIZES = {"cpu": 768, "gpu": 8192}
_GIGA = {"cpu": 1e9, "gpu": 1e12}  # CPUs read in GFLOPS, GPUs in TFLOPS
_FLUSH_MIB = {"cpu": 0, "gpu": 256}  # beyond the L2 cache of every GPU there is, as mamf-finder does it
_MIN_BLOCKS = 5


class GemmRate(Probe):
    """GEMM rate by number format."""

    name = "gemm_rate"
    stage = "performance"
    doc = "Matrix multiplication rate by number format"
    params = {
        "dtypes": Param(None, "number formats; None takes those that matter for the kind of device"),
        "size": Param(None, "m = n = k; None takes one that suits the kind of device"),
        "seconds": Param(1.0, "timed work for each format and device, in device seconds"),
        "warmup_s": Param(0.3, "work before timing starts, in device seconds"),
    }
    metrics = {
        "gemm_rate": Metric(
            "GFLOPS", "median rate of a core alone, of the node with all cores at work, of a GPU", "TFLOPS"
        ),
        "gemm_peak_share": Metric("%", "rate against clock × vector width × 2 FMA units"),
        "gemm_scaling": Metric("%", "rate of all cores together against the sum of each alone"),
        "gemm_rate_per_clock": Metric(
            "TFLOPS/GHz", "rate by the clock it was reached at, in which a slow clock cancels"
        ),
        "gemm_clock": Metric("MHz", "mean clock while measuring"),
        "gemm_power": Metric("W", "mean power while measuring"),
        "gemm_temperature": Metric("°C", "mean core temperature while measuring, which explains part of the clock"),
        **cpu_shares.METRICS,
    }
    needs = ("torch",)

    @classmethod
    def timed_s(cls, params: Mapping[str, Any], devices: int) -> float:
        """For each format: warm-up and blocks, on all at once."""
        return float((params["warmup_s"] + params["seconds"]) * len(params["dtypes"] or [""]))

    def run(self, context: Context) -> None:
        """Measure every format. Raises Skip where no device has any of them."""
        torch = require_torch()
        gpus = context.hardware.devices("gpu")
        measured = False
        for dtype in context.params["dtypes"] or DTYPES["gpu" if gpus else "cpu"]:
            with precision_of(torch, dtype):
                measured = (_on_gpus if gpus else _on_cores)(context, torch, dtype) or measured
        if not measured:
            raise Skip("no device here multiplies any of the formats asked for")
        cpu_shares.emit_cpu_shares(context)


@dataclasses.dataclass(frozen=True)
class _Rates:
    """Rates of one device in its unit, block by block, as are rates per GHz; means of what is known of its pace."""

    blocks: list[float]
    clock_mhz: float | None
    power_w: float | None
    core_c: float | None
    per_ghz: list[float]


def _on_gpus(context: Context, torch: Any, dtype: str) -> bool:
    labels = {"dtype": dtype}
    context.progress(f"{dtype} products on all GPUs")
    found = _measure(context, torch, dtype, context.hardware.devices("gpu"))
    for name, rates in found.items():
        if error_of(rates):
            context.emit("gemm_rate", name, labels=labels, note=error_of(rates))
            continue
        _emit_rate(context, name, dtype, rates)
        _emit_others(context, name, labels, rates)
    return bool(found)


def _emit_others(context: Context, device: str, labels: dict[str, str], rates: _Rates) -> None:
    """Metrics of a GPU other than its rate."""
    emit, samples = context.emit, len(rates.blocks)
    if rates.per_ghz:
        # Block by block: a clock that jumps between throttled and free has no typical value to divide by.
        emit("gemm_rate_per_clock", device, value=median(rates.per_ghz), labels=labels, samples=len(rates.per_ghz))
    for metric, value, what in (
        ("gemm_power", rates.power_w, "power"),
        ("gemm_temperature", rates.core_c, "temperature"),
    ):
        note = "" if value else f"the GPU reports no {what}"
        emit(metric, device, value=value, labels=labels, samples=samples, note=note)


def _on_cores(context: Context, torch: Any, dtype: str) -> bool:
    alone: dict[str, Any] = {}
    for device in context.hardware.devices("cpu"):
        context.progress(f"{dtype} products on {device.id}")
        alone.update(_measure(context, torch, dtype, [device]))
    peak, why_not = _peak_gflops(context, dtype)
    labels = {"dtype": dtype}
    for device_id, rates in alone.items():
        _emit_rate(context, device_id, dtype, rates)
        share = 100.0 * median(rates.blocks) / peak if peak else None
        context.emit("gemm_peak_share", device_id, value=share, labels=labels, samples=len(rates.blocks), note=why_not)
    if not alone:
        return False
    cores = context.hardware.devices("core") or context.hardware.devices("cpu")
    context.progress(f"{dtype} products on all cores")
    together = _measure(context, torch, dtype, cores)
    rounds = [sum(blocks) for blocks in zip(*(rates.blocks for rates in together.values()))]
    rate = sum(median(rates.blocks) for rates in together.values())
    single = sum(median(alone[device_id].blocks) for device_id in together)
    context.emit("gemm_rate", "node", value=rate, labels=labels, samples=len(rounds), spread=spread(rounds))
    context.emit("gemm_scaling", "node", value=100.0 * rate / single, labels=labels, samples=len(rounds))
    return True


def _emit_rate(context: Context, device: str, dtype: str, rates: _Rates) -> None:
    labels, blocks = {"dtype": dtype}, rates.blocks
    context.emit("gemm_rate", device, value=median(blocks), labels=labels, samples=len(blocks), spread=spread(blocks))
    if rates.clock_mhz:
        context.emit("gemm_clock", device, value=rates.clock_mhz, labels=labels, samples=len(blocks))


def _peak_gflops(context: Context, dtype: str) -> tuple[float | None, str]:
    """A core's peak rate, and the note for shares of it."""
    if dtype not in ("fp64", "fp32"):
        return None, f"unknown: cores have units of their own for {dtype}, or none"
    facts = {fact.name: fact for fact in context.hardware.inventory() if fact.device == "node"}
    clock, width = facts.get("cpu_max_clock"), facts.get("cpu_vector_width")
    if clock is None or width is None or not clock.value or not width.value:
        return None, "the clock or the vector width is not known"
    return clock.value / 1000.0 * width.value / FORMATS[dtype].bits * FMA_UNITS * FLOP_PER_FMA, clock.note


def _measure(context: Context, torch: Any, dtype: str, devices: list[Device]) -> dict[str, Any]:
    """_Rates, or the DeviceError, of every device that multiplies the format."""
    with context.hardware.loading(devices):
        takes_s = context.params["warmup_s"] + context.params["seconds"]
        found = on_each(context.hardware, devices, functools.partial(_rate, torch, context, dtype), takes_s=takes_s)
    return {device.id: rates for device, rates in zip(devices, found) if rates is not None}


def _rate(torch: Any, context: Context, dtype: str, worker: Worker) -> _Rates | None:
    """The work of one device: warm up, then timed blocks. None without the format."""
    compute, kind = context.hardware.compute(worker.device), worker.device.kind
    if not compute.supports(dtype):
        worker.ready()
        return None
    params = context.params
    size, seed = params["size"] or SIZES[kind], seed_of(context.seed, worker.device.id)
    products = Products(torch, compute, dtype, (size, size, size), seed, _FLUSH_MIB[kind])
    worker.ready()
    products.blocks(params["warmup_s"], 0)
    timings = products.blocks(params["seconds"], _MIN_BLOCKS)
    work = products.flop * products.per_block / _GIGA[kind]
    return _Rates(
        blocks=[work / timing.seconds for timing in timings],
        clock_mhz=_mean([timing.mean_clock_mhz for timing in timings]),
        power_w=_mean([timing.mean_power_w for timing in timings]),
        core_c=_mean([timing.mean_core_c for timing in timings]),
        per_ghz=[work / t.seconds / (t.mean_clock_mhz / 1000.0) for t in timings if t.mean_clock_mhz],
    )


def _mean(readings: list[float | None]) -> float | None:
    known = [reading for reading in readings if reading]
    return sum(known) / len(known) if known else None
