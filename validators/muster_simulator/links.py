"""Bandwidth of a simulated GPU's links: PCIe (or C2C) to the host, NVLink to its peers, or PCIe without it.

Pure functions of the machine as built, in bytes/s.
"""

from __future__ import annotations

from muster_simulator.machine import Gpu
from muster_simulator.models import Model

# A lane of generation 3 moves 8 GT/s, each further generation twice that; 128 of 130 bits are payload.
_LANE_RATE = 8e9 * 128 / 130 / 8
# Published copies reach 51 and 52 of 63 GB/s on H100 and 26.3 of 31.5 GB/s on A100 (Azure/AI-benchmarking-guide).
_PCIE_SHARE = 0.82
# Not published, chosen: what each direction keeps when both are under way, and a copy's share of NVLink.
_BOTH_WAYS_SHARE = 0.92
_NVLINK_SHARE = 0.8
LATENCY_S = 4e-6
"""Chosen as well: from the start of a copy to its first byte."""


def host_rate(model: Model, gpu: Gpu, both_ways: bool) -> float:
    """Of each direction between host and GPU, alone or while the other is under way too."""
    lanes = gpu.pcie_width * _LANE_RATE * 2.0 ** (gpu.pcie_generation - 3)
    rate = model.c2c_rate * _NVLINK_SHARE if model.c2c_rate else lanes * _PCIE_SHARE
    return rate * (_BOTH_WAYS_SHARE if both_ways else 1.0)


def peer_rate(model: Model, one: Gpu, other: Gpu) -> float:
    """Of a copy from one GPU to another, as fast as the one with fewer links; switches between them add nothing."""
    links = min(one.nvlinks, other.nvlinks)
    if links <= 0:
        return min(host_rate(model, one, False), host_rate(model, other, False))
    return links * model.nvlink_rate * _NVLINK_SHARE
