"""How fast matrices multiply: on each core alone and on all together, or on all GPUs at once.

One block of products is timed after another, after a warm-up; the figure is the median block. On CPUs it is also told
as a share of what clock and vector width could give with two fused multiply-add units a core, an assumption that holds
for server cores since 2017; a core that splits wide vectors (512 bits in two halves) reaches half of it at most.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional

from muster_node.hardware.cpu_compute import require_torch
from muster_node.hardware.seam import Device, Timing, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.probes._shared import FORMATS, median, precision_of, seed_of, spread

FMA_UNITS = 2
FLOP_PER_FMA = 2

DTYPES = {"cpu": ["fp64", "fp32", "bf16"], "gpu": ["bf16", "tf32", "fp8"]}
SIZES = {"cpu": 768, "gpu": 8192}
_GIGA = {"cpu": 1e9, "gpu": 1e12}  # CPUs read in GFLOPS, GPUs in TFLOPS
_BLOCK_S = 0.02  # a block this long is far above the clock's resolution and the cost of synchronising
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
            "TFLOPS/GHz", "rate by the clock it was reached at, which tells a slow clock apart"
        ),
        "gemm_clock": Metric("MHz", "mean clock while measuring"),
    }
    needs = ("torch",)

    @classmethod
    def timed_s(cls, params: Mapping[str, Any], devices: int) -> float:
        """As long for each format, and as long to warm up."""
        return float((params["seconds"] + params["warmup_s"]) * len(params["dtypes"] or [""]))

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


@dataclasses.dataclass(frozen=True)
class _Rates:
    """Rates of one device in its unit, block by block, the mean clock where known, and rates per GHz of it."""

    blocks: List[float]
    clock_mhz: Optional[float]
    per_ghz: List[float]


def _on_gpus(context: Context, torch: Any, dtype: str) -> bool:
    gpus = context.hardware.devices("gpu")
    context.progress("%s products on all GPUs" % dtype)
    found = _measure(context, torch, dtype, gpus)
    for device, rates in found.items():
        _emit_rate(context, device, dtype, rates)
        if rates.per_ghz:
            # Block by block: a clock that jumps between throttled and free has no typical value to divide by.
            samples, value = len(rates.per_ghz), median(rates.per_ghz)
            context.emit("gemm_rate_per_clock", device, value=value, labels={"dtype": dtype}, samples=samples)
    return bool(found)


def _on_cores(context: Context, torch: Any, dtype: str) -> bool:
    alone: Dict[str, _Rates] = {}
    for device in context.hardware.devices("cpu"):
        context.progress("%s products on %s" % (dtype, device.id))
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
    context.progress("%s products on all cores" % dtype)
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


def _peak_gflops(context: Context, dtype: str) -> "tuple[Optional[float], str]":
    """What a core could give at most, and the note that goes with a share of it."""
    if dtype not in ("fp64", "fp32"):
        return None, "not told by the vector width: cores have their own units for %s, or none" % dtype
    facts = {fact.name: fact for fact in context.hardware.inventory() if fact.device == "node"}
    clock, width = facts.get("cpu_max_clock"), facts.get("cpu_vector_width")
    if clock is None or width is None or not clock.value or not width.value:
        return None, "the clock or the vector width is not known"
    return clock.value / 1000.0 * width.value / FORMATS[dtype].bits * FMA_UNITS * FLOP_PER_FMA, clock.note


def _measure(context: Context, torch: Any, dtype: str, devices: List[Device]) -> Dict[str, _Rates]:
    with context.hardware.loading(devices):
        found = context.hardware.at_once(devices, _Rating(torch, context, dtype))
    return {device.id: rates for device, rates in zip(devices, found) if rates is not None}


class _Rating:
    """The work of one device: warm up, then timed blocks."""

    def __init__(self, torch: Any, context: Context, dtype: str) -> None:
        self._torch, self._hardware, self._dtype = torch, context.hardware, dtype
        self._params, self._seed = context.params, context.seed

    def __call__(self, worker: Worker) -> Optional[_Rates]:
        compute = self._hardware.compute(worker.device)
        supported = compute.supports(self._dtype)
        if supported:
            size = self._params["size"] or SIZES[worker.device.kind]
            a, b = self._operands(compute, size, worker.device.id)
            nominal = (size, size, size)
            # The first product plans and allocates; the second tells how many make a block.
            compute.matmul(a, b, nominal=nominal)
            with compute.timer() as timing:
                compute.matmul(a, b, nominal=nominal)
            per_block = max(1, round(_BLOCK_S / max(timing.seconds, 1e-9)))
        worker.ready()
        if not supported:
            return None

        def block() -> Timing:
            with compute.timer() as timing:
                for _ in range(per_block):
                    compute.matmul(a, b, nominal=nominal)
            return timing

        warm = 0.0
        while warm < self._params["warmup_s"]:
            warm += block().seconds
        timings: List[Timing] = []
        while len(timings) < _MIN_BLOCKS or sum(t.seconds for t in timings) < self._params["seconds"]:
            timings.append(block())
        work = 2.0 * size**3 * per_block / _GIGA[worker.device.kind]
        clocks = [timing.mean_clock_mhz for timing in timings if timing.mean_clock_mhz]
        per_ghz = [work / t.seconds / (t.mean_clock_mhz / 1000.0) for t in timings if t.mean_clock_mhz]
        mean_clock = sum(clocks) / len(clocks) if clocks else None
        return _Rates([work / timing.seconds for timing in timings], mean_clock, per_ghz)

    def _operands(self, compute: Any, size: int, device_id: str) -> List[Any]:
        """Normal random operands: zeros or ones would draw less power and so run at a higher clock."""
        torch, shape = self._torch, compute.physical(size, size)
        generator = torch.Generator(device=compute.torch_device).manual_seed(seed_of(self._seed, device_id))
        target = getattr(torch, FORMATS[self._dtype].torch_name)
        normals = [torch.randn(shape, generator=generator, device=compute.torch_device) for _ in range(2)]
        return [(x * 40).clamp(-127, 127).to(target) if self._dtype == "int8" else x.to(target) for x in normals]
