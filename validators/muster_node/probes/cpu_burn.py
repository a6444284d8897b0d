"""Burn-in of the host: all cores multiply and check memory for a set time, error counters are read before and after.

Throughput is kept window by window, so that a core that slows down as the machine warms shows as a drop.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional

from muster_node.hardware.cpu_compute import require_torch
from muster_node.hardware.host_parse import hardware_errors
from muster_node.hardware.seam import Hardware, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.probes._patterns import BLOCK_BYTES, Region, random_words
from muster_node.probes._shared import GIB, MIB, drop_percent, median, seed_of, spread

COUNTERS = ("machine_checks", "edac_corrected", "edac_uncorrected")
_SIZE = 512
_WINDOWS = 30  # windows over the burn: ten in each third
_WINDOW_MIN_S = 0.1
_FREE_SHARE = 0.8
_PROGRESS_S = 10.0
_REGION_BYTES = 64 * MIB  # memory checked after each window: beyond a core's share of cache, quicker than a window


class CpuBurn(Probe):
    """Sustained all-core GEMM and memory load."""

    name = "cpu_burn"
    stage = "burn_in"
    doc = "All cores and memory under load, with throughput over time and error counters"
    params = {
        "seconds": Param(60.0, "how long to burn"),
        "dtype": Param("float64", "number format of the products: float64 or float32"),
        "memory_gib": Param(0.5, "memory that all cores together write and check while they burn, in GiB"),
    }
    metrics = {
        "burn_rate": Metric("GFLOPS", "median rate of a logical CPU over the burn, memory checks left out"),
        "burn_rate_drop": Metric("%", "how much lower the last third of the burn is than the first"),
        "burn_rate_spread": Metric("%", "(fastest − slowest) / median of the CPUs' rates"),
        "machine_checks": Metric("count", "machine-check events during the burn"),
        "edac_corrected": Metric("count", "memory errors corrected during the burn"),
        "edac_uncorrected": Metric("count", "memory errors not corrected during the burn"),
        "kernel_errors": Metric("count", "kernel messages about failing hardware during the burn"),
        "memory_burn_mismatches": Metric("count", "words of memory that did not hold what was written"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Burn. Raises Skip where the memory to check is not free."""
        torch = require_torch()
        hardware = context.hardware
        devices = hardware.devices("cpu")
        if not devices:
            raise Skip("this machine offers no CPU to burn")
        counters, log = _counters(hardware), hardware.kernel_log()
        start, last = hardware.clock.now(), [0.0]

        def tick() -> None:
            elapsed = hardware.clock.now() - start
            if elapsed - last[0] >= _PROGRESS_S:
                last[0] = elapsed
                context.progress("burning %d CPUs, %.0f of %.0f s" % (len(devices), elapsed, context.params["seconds"]))

        context.progress("burning %d CPUs for %.0f s" % (len(devices), context.params["seconds"]))
        with hardware.loading(devices):
            burns = hardware.at_once(devices, _Burning(torch, context), tick)
        for device, burn in zip(devices, burns):
            samples = len(burn.rates)
            context.emit("burn_rate", device.id, value=median(burn.rates), samples=samples, spread=spread(burn.rates))
            drop = drop_percent(burn.rates)
            note = "" if drop is not None else "the burn was too short"
            context.emit("burn_rate_drop", device.id, value=drop, samples=samples, note=note)
        _emit_whole(context, burns)
        _emit_errors(context, counters, log)


@dataclasses.dataclass(frozen=True)
class _Burn:
    """One CPU's burn: GFLOPS window by window, memory passes, and words that were wrong."""

    rates: List[float]
    memory_checks: int
    mismatches: int
    examples: List[str]


def _emit_whole(context: Context, burns: List[_Burn]) -> None:
    medians = [median(burn.rates) for burn in burns]
    value = 100.0 * (max(medians) - min(medians)) / median(medians) if len(medians) > 1 else None
    note = "" if value is not None else "there is only one CPU"
    context.emit("burn_rate_spread", "node", value=value, samples=len(medians), note=note)
    context.emit(
        "memory_burn_mismatches",
        "memory",
        value=sum(burn.mismatches for burn in burns),
        samples=sum(burn.memory_checks for burn in burns),
        note="; ".join([example for burn in burns for example in burn.examples][:4]),
    )


def _emit_errors(context: Context, before: Dict[str, Any], log_before: Optional[List[str]]) -> None:
    after = _counters(context.hardware)
    for name in COUNTERS:
        old, new = before.get(name), after.get(name)
        note = new.note if new is not None else "not supported"
        if old is None or new is None or old.value is None or new.value is None:
            context.emit(name, "node", value=None, note=note or "not supported")
        else:
            context.emit(name, "node", value=new.value - old.value)
    log_after = context.hardware.kernel_log()
    if log_before is None or log_after is None:
        context.emit("kernel_errors", "node", value=None, note="the kernel log cannot be read: no privilege")
        return
    known_lines = set(log_before)
    errors = hardware_errors([line for line in log_after if line not in known_lines])
    context.emit("kernel_errors", "node", value=len(errors), note="; ".join(errors[:3]))


def _counters(hardware: Hardware) -> Dict[str, Any]:
    return {fact.name: fact for fact in hardware.counters() if fact.device == "node"}


def _sizes(total: int) -> List[int]:
    count = max(1, total // _REGION_BYTES)
    return [total // count] * count


class _Burning:
    """The work of one CPU: windows of products, each followed by a check of the next part of its memory."""

    def __init__(self, torch: Any, context: Context) -> None:
        self._torch, self._hardware = torch, context.hardware
        self._params, self._seed = context.params, context.seed

    def __call__(self, worker: Worker) -> _Burn:
        torch, clock = self._torch, self._hardware.clock
        compute = self._hardware.compute(worker.device)
        memory_bytes = int(self._params["memory_gib"] * GIB)
        if memory_bytes > _FREE_SHARE * compute.free_memory():
            raise Skip("%.1f GiB to check while burning are not free" % self._params["memory_gib"])
        seed = seed_of(self._seed, worker.device.id)
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, self._params["dtype"])
        a, b = (torch.randn((_SIZE, _SIZE), generator=generator, dtype=dtype) for _ in range(2))
        worker.ready()
        sizes = _sizes(memory_bytes // worker.count)
        regions = [Region(torch, compute, size, BLOCK_BYTES["cpu"]) for size in sizes]
        seconds = self._params["seconds"]
        window = max(_WINDOW_MIN_S, seconds / _WINDOWS)
        rates: List[float] = []
        mismatches, examples = 0, []  # type: int, List[str]
        end = clock.now() + seconds
        while not rates or clock.now() < end:
            until, products, busy = clock.now() + window, 0, 0.0
            while not products or clock.now() < until:
                with compute.timer() as timing:
                    compute.matmul(a, b, nominal=(_SIZE, _SIZE, _SIZE))
                products, busy = products + 1, busy + timing.seconds
            rates.append(2.0 * _SIZE**3 * products / busy / 1e9)
            wrong, found = regions[len(rates) % len(regions)].test([random_words(seed + len(rates))])
            mismatches += wrong
            examples += found[: 4 - len(examples)] if len(examples) < 4 else []
        return _Burn(rates, len(rates), mismatches, examples)
