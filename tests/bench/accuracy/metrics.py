"""What is measured of each GPU, by names and units of probes and programme, and how long each probe loads the node."""

from __future__ import annotations

import dataclasses
from typing import Literal

Bad = Literal["low", "high", "other", ""]
"""Which way a defect shows: too low, too high, or any value but the healthy one; none where it only explains."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """One figure of each GPU. ``figure``: what a data sheet or a published measurement says, where one does."""

    name: str
    unit: str
    probe: str
    bad: Bad
    labels: tuple[tuple[str, str], ...] = ()
    figure: float | None = None
    healthy: float | None = None

    @property
    def key(self) -> str:
        """ "memory_bandwidth[op=copy]"."""
        labels = ",".join(f"{key}={value}" for key, value in self.labels)
        return f"{self.name}[{labels}]" if labels else self.name


@dataclasses.dataclass(frozen=True)
class Probe:
    """A probe in the order of the programme ``gpu-node``: its stage, and seconds of load at level ``short``."""

    name: str
    stage: str
    seconds: float


PROBES = (
    Probe("inventory", "intake", 10.0),
    Probe("gpu_burn", "burn_in", 900.0),
    Probe("gpu_watch", "burn_in", 0.0),
    Probe("exact_gemm", "integrity", 180.0),
    Probe("memory_pattern", "integrity", 120.0),
    Probe("gemm_rate", "performance", 360.0),
    Probe("memory_bandwidth", "performance", 40.0),
    Probe("transfers", "performance", 80.0),
    Probe("thermal_soak", "thermal", 900.0),
)
"""From the programme's parameters: the burn and the soak as they stand; four formats on eight GPUs alone and once
together, 5 s each; three formats of 60 s after 60 s of warm-up; 20 s for each kind of copy."""


def _labelled(key: str, *values: str) -> list[tuple[tuple[str, str], ...]]:
    return [((key, value),) for value in values]


def _gemm(name: str, unit: str, bf16: float | None, fp8: float | None) -> list[Metric]:
    both = zip(_labelled("dtype", "bf16", "fp8"), (bf16, fp8), strict=True)
    return [Metric(name, unit, "gemm_rate", "low", labels, figure) for labels, figure in both]


def _count(name: str, probe: str, labels: tuple[tuple[str, str], ...] = (), healthy: float = 0.0) -> Metric:
    return Metric(name, "count", probe, "other", labels, healthy=healthy)


# Figures: stas00/ml-engineering and Azure/AI-benchmarking-guide@8fd0c6e for GEMM, HBM and PCIe; NVIDIA's data sheet for
# power; 0.8 of 26.562 GB/s on each of 18 NVLinks (NVIDIA Health Validation); 87 °C is 700 W Hopper's maximum.
METRICS = (
    *_gemm("gemm_rate", "TFLOPS", 794.5, 1290.1),
    *_gemm("gemm_rate_per_clock", "TFLOPS/GHz", None, None),
    Metric("gemm_clock", "MHz", "gemm_rate", "low", (("dtype", "bf16"),)),
    *(Metric("gemm_temperature", "°C", "gemm_rate", "", labels) for labels in _labelled("dtype", "bf16", "fp8")),
    Metric("burn_rate", "TFLOPS", "gpu_burn", "low", figure=794.5),
    Metric("burn_rate_per_clock", "TFLOPS/GHz", "gpu_burn", "low"),
    Metric("memory_bandwidth", "GB/s", "memory_bandwidth", "low", (("op", "copy"),), 2900.0),
    Metric("memory_bandwidth", "GB/s", "memory_bandwidth", "low", (("op", "triad"),), 2970.0),
    Metric("pcie_bandwidth", "GB/s", "transfers", "low", (("direction", "h2d"),), 51.0),
    Metric("pcie_bandwidth", "GB/s", "transfers", "low", (("direction", "d2h"),), 52.0),
    Metric("peer_bandwidth", "GB/s", "transfers", "low", figure=382.5),
    Metric("power_share", "%", "thermal_soak", "low", figure=100.0),
    Metric("temperature_max", "°C", "thermal_soak", "high", figure=87.0),
    Metric("hbm_temperature_max", "°C", "thermal_soak", "high", figure=95.0),
    Metric("thermal_resistance", "°C/W", "thermal_soak", "high"),
    *(
        Metric("throttle_time", "s", "gpu_watch", "other", labels, healthy=0.0)
        for labels in _labelled("reason", "hw_power_brake", "hw_thermal", "sw_thermal")
    ),
    _count("pcie_width", "inventory", healthy=16.0),
    _count("pcie_generation_max", "inventory", healthy=5.0),
    _count("nvlink_active", "inventory", healthy=18.0),
    Metric("row_remap_pending", "bool", "inventory", "other", healthy=0.0),
    _count("ecc_uncorrected_delta", "gpu_watch"),
    _count("gemm_mismatches", "exact_gemm", (("dtype", "bf16"),)),
    _count("memory_mismatches", "memory_pattern", (("pattern", "random"),)),
)

CONTINUOUS = tuple(metric for metric in METRICS if metric.bad in ("low", "high"))
DISCRETE = tuple(metric for metric in METRICS if metric.bad == "other")
