"""Burn-in of the host: all cores multiply and check memory for a set time, error counters are read before and after.

Throughput is kept window by window, so that a core that slows down as the machine warms shows as a drop.
"""

from __future__ import annotations

import functools

from muster_node.hardware.pytorch import require_torch
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.workloads.common import beyond_caches, drop_percent, median, spread
from muster_node.workloads.host_load import CHECKS, burn_cpu, emit_checks
from muster_node.workloads.under_load import cpu_shares
from muster_node.workloads.under_load.counters import HOST_METRICS, Counters

_PROGRESS_S = 10.0


class CpuBurn(Probe):
    """Sustained all-core GEMM and memory load."""

    name = "cpu_burn"
    stage = "burn_in"
    doc = "All cores and memory under load, with throughput over time and error counters"
    params = {
        "seconds": Param(60.0, "how long to burn"),
        "dtype": Param("float64", "number format of the products: float64 or float32"),
        "memory_gib": Param(0.5, "memory that all cores together write and check, in GiB; more where caches hold it"),
    }
    metrics = {
        "burn_rate": Metric("GFLOPS", "median rate of a logical CPU over the burn, memory checks left out"),
        "burn_rate_drop": Metric("%", "how much lower the last third of the burn is than the first"),
        **HOST_METRICS,
        **cpu_shares.METRICS,
        **CHECKS,
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Burn. Raises Skip where the memory to check is not free."""
        torch = require_torch()
        hardware = context.hardware
        devices = hardware.devices("cpu")
        if not devices:
            raise Skip("this machine offers no CPU to burn")
        counters = Counters(hardware)
        start, last = hardware.clock.now(), [0.0]

        def tick() -> None:
            elapsed = hardware.clock.now() - start
            if elapsed - last[0] >= _PROGRESS_S:
                last[0] = elapsed
                context.progress(f"burning {len(devices)} CPUs, {elapsed:.0f} of {context.params['seconds']:.0f} s")

        context.progress(f"burning {len(devices)} CPUs for {context.params['seconds']:.0f} s")
        params = context.params
        work = functools.partial(
            burn_cpu, torch, context, params["dtype"], params["memory_gib"], params["seconds"], lambda: False,
            least_bytes=beyond_caches(hardware),
        )  # fmt: skip
        with hardware.loading(devices):
            burns = hardware.at_once(devices, work, tick)
        for device, burn in zip(devices, burns):
            samples = len(burn.rates)
            context.emit("burn_rate", device.id, value=median(burn.rates), samples=samples, spread=spread(burn.rates))
            drop = drop_percent(burn.rates)
            note = "" if drop is not None else "the burn was too short"
            context.emit("burn_rate_drop", device.id, value=drop, samples=samples, note=note)
        emit_checks(context, burns)
        counters.emit_host(context)
        cpu_shares.emit_cpu_shares(context)
