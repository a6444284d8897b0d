"""Memory bandwidth: copy and triad, counted as STREAM counts them, on each GPU, then on all cores at once.

Arrays hold at least four times the last-level cache together, as STREAM asks. Bytes are those that the program reads
and writes (copy 2, triad 3 for each element); what a cache fetches before a write is not counted.
"""

from __future__ import annotations

import math
from typing import Any, Callable

from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Device, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.workloads.common import GIB, MIB, beyond_caches, median, memory_gib, spread
from muster_node.workloads.each_device import error_of, on_each
from muster_node.workloads.under_load import cpu_shares

_ELEMENT = 8  # float64, as in STREAM
_ARRAY_MIB = {"cpu": 128, "gpu": 4096}
_ARRAYS = 3
_FREE_SHARE = 0.5
_TOTAL_SHARE = 0.45  # of all memory, so that what the driver keeps leaves room within the share of what is free
_MIN_PASSES = 5
_WARMUP_PASSES = 2
_TRIAD_SCALAR = 3.0
_BYTES_PER_ELEMENT = {"copy": 2 * _ELEMENT, "triad": 3 * _ELEMENT}


class MemoryBandwidth(Probe):
    """Copy and triad rates."""

    name = "memory_bandwidth"
    stage = "performance"
    doc = "Memory bandwidth by copy and triad, all GPUs at work, then all cores"
    params = {
        "seconds": Param(1.0, "timed work for each operation, in device seconds"),
        "array_mib": Param(
            None, "size of each of the three arrays in MiB, of the machine and of each GPU; None: well beyond caches"
        ),
    }
    metrics = {"memory_bandwidth": Metric("GB/s", "bytes read and written per second"), **cpu_shares.METRICS}
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Measure. Raises Skip where the arrays do not fit into half of the free memory of what there is to measure."""
        torch = require_torch()
        gpus = context.hardware.devices("gpu")
        cores = context.hardware.devices("core") or context.hardware.devices("cpu")
        for device, rates in zip(gpus, _measure(context, torch, gpus)):
            for op in _BYTES_PER_ELEMENT:
                _emit(context, device.id, op, [] if error_of(rates) else rates[op], error_of(rates))
        try:
            together, why_not = _measure(context, torch, cores), "the machine lists no CPU"
        except Skip as skip:
            if not gpus:
                raise
            together, why_not = [], str(skip)
        for op in _BYTES_PER_ELEMENT:
            passes = [sum(each) for each in zip(*(rates[op] for rates in together))]
            _emit(context, "memory", op, passes, why_not)
        cpu_shares.emit_cpu_shares(context)


def _measure(context: Context, torch: Any, devices: list[Device]) -> list[Any]:
    """Each device's rates in GB/s by operation, pass by pass, all at work at once; or its DeviceError."""
    if not devices:
        return []
    array_bytes = MIB * (context.params["array_mib"] or _array_mib(context, devices[0].kind))
    context.progress("copy and triad on {}".format(", ".join(device.id for device in devices)))
    takes_s = len(_BYTES_PER_ELEMENT) * context.params["seconds"]
    with context.hardware.loading(devices):
        return on_each(context.hardware, devices, _Streaming(torch, context, array_bytes), takes_s=takes_s)


def _array_mib(context: Context, kind: str) -> float:
    """The same on all GPUs: what the smallest of them has room for."""
    if kind == "gpu":
        smallest = min(memory_gib(context.hardware).values(), default=math.inf)
        return min(_ARRAY_MIB[kind], smallest * GIB / MIB * _TOTAL_SHARE / _ARRAYS)
    return max(_ARRAY_MIB[kind], beyond_caches(context.hardware) / MIB)


def _emit(context: Context, device: str, op: str, rates: list[float], why_not: str = "") -> None:
    context.emit(
        "memory_bandwidth",
        device,
        value=median(rates) if rates else None,
        labels={"op": op},
        samples=len(rates),
        spread=spread(rates) if rates else None,
        note="" if rates else why_not,
    )


class _Streaming:
    """The work of one device: both operations over its share of the arrays; GB/s pass by pass."""

    def __init__(self, torch: Any, context: Context, array_bytes: float) -> None:
        self._torch, self._hardware, self._array_bytes = torch, context.hardware, array_bytes
        self._seconds = context.params["seconds"]

    def __call__(self, worker: Worker) -> dict[str, list[float]]:
        torch, compute = self._torch, self._hardware.compute(worker.device)
        elements = int(self._array_bytes / (worker.count if worker.device.kind == "cpu" else 1)) // _ELEMENT
        if _ARRAYS * self._array_bytes > _FREE_SHARE * compute.free_memory():
            raise Skip(f"three arrays of {self._array_bytes / MIB:.0f} MiB do not fit into half of the free memory")
        worker.ready()  # all have read how much is free before one allocates
        (physical,) = compute.physical(elements)
        a, b, c = (
            torch.full((physical,), value, dtype=torch.float64, device=compute.torch_device)
            for value in (0.0, 1.0, 2.0)
        )

        def copy() -> None:
            compute.copy(a, b, nominal_bytes=elements * _ELEMENT)

        def triad() -> None:
            torch.add(b, c, alpha=_TRIAD_SCALAR, out=a)
            compute.touch(a, nominal_bytes=elements * _BYTES_PER_ELEMENT["triad"])

        return {
            op: self._rates(compute, work, elements * _BYTES_PER_ELEMENT[op], worker)
            for op, work in (("copy", copy), ("triad", triad))
        }

    def _rates(self, compute: Compute, work: Callable[[], None], pass_bytes: int, worker: Worker) -> list[float]:
        for _ in range(_WARMUP_PASSES):
            work()
        worker.ready()
        seconds: list[float] = []
        while len(seconds) < _MIN_PASSES or sum(seconds) < self._seconds:
            with compute.timer() as timing:
                work()
            seconds.append(timing.seconds)
        return [pass_bytes / each / 1e9 for each in seconds]
