"""Hardware models that can be simulated: one entry each, data only.

Figures that vendors or operators publish are anchors, and say from where; what nobody publishes (idle power, thermal
resistance, time constants, spreads) is this simulation's own choice of something plausible and is quoted nowhere.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Tuple


@dataclasses.dataclass(frozen=True)
class Model:
    """A GPU node as it leaves the drawing board; ``machine`` draws each built one around it.

    ``work_per_clock`` is TFLOPS (int8: TOPS) per GHz of SM clock in a large GEMM, by dtype. ``gemm_clock_mhz`` is the
    SM clock that a typical part holds in such a GEMM at ``power_limit_w`` with its core at ``rated_core_c``. Rates are
    bytes/s, temperatures °C, power W, resistances °C/W, sizes bytes.
    """

    gpu_model: str
    gpu_count: int
    vbios: str
    hbm_bytes: int
    hbm_rate: float
    work_per_clock: Dict[str, float]
    gemm_clock_mhz: float
    boost_clock_mhz: float
    idle_clock_mhz: float
    power_limit_w: float
    idle_power_w: float
    leakage_w: float
    rated_core_c: float
    thermal_resistance: float
    core_seconds: float
    hbm_seconds: float
    hbm_offset_c: float
    preheat_per_w: float
    gpu_max_c: float
    slowdown_c: float
    slowdown_release_c: float
    inlet_c: float
    nvlinks: int
    nvlink_rate: float
    pcie_generation: int
    pcie_width: int
    fans: int
    cpu_model: str
    cpu_microcode: str
    cpu_sockets: int
    cpu_cores: int
    cpu_max_clock_mhz: float
    cpu_llc_mib: float
    memory_gib: float
    nics: Tuple[Tuple[str, float], ...]
    disks: Tuple[Tuple[str, float], ...]
    pcie_devices: int
    driver_version: str
    cuda_version: str
    kernel: str
    os: str


# Slowdown 89 °C and GPU max-op 87 °C: 700 W Hopper, NVML/DCGM thresholds (test-science 4.2). The best published bf16
# GEMM on an H100 SXM is 794.5 TFLOPS on the best shape of a good part, fp8 8192³ 1290 (reference-figures 1): a typical
# part of ours does 0.94 of that. HBM copy 2.90 TB/s (reference-figures 2), 26,562 MB/s an NVLink and direction
# (reference-figures 6).
_H100 = Model(
    gpu_model="NVIDIA H100 80GB HBM3",
    gpu_count=8,
    vbios="96.00.A5.00.01",
    hbm_bytes=81559 * 2**20,
    hbm_rate=2.85e12,
    work_per_clock={
        "bf16": 461.0,
        "fp16": 461.0,
        "tf32": 230.0,
        "fp8": 749.0,
        "int8": 749.0,
        "fp64": 31.0,
        "fp32": 31.0,
    },
    gemm_clock_mhz=1620.0,
    boost_clock_mhz=1980.0,
    idle_clock_mhz=345.0,
    power_limit_w=700.0,
    idle_power_w=38.0,
    leakage_w=60.0,
    rated_core_c=62.0,
    thermal_resistance=0.055,
    core_seconds=40.0,
    hbm_seconds=60.0,
    hbm_offset_c=9.0,
    preheat_per_w=0.003,
    gpu_max_c=87.0,
    slowdown_c=89.0,
    slowdown_release_c=84.0,
    inlet_c=24.0,
    nvlinks=18,
    nvlink_rate=26.562e9,
    pcie_generation=5,
    pcie_width=16,
    fans=6,
    cpu_model="Intel(R) Xeon(R) Platinum 8480C",
    cpu_microcode="0x2b000603",
    cpu_sockets=2,
    cpu_cores=112,
    cpu_max_clock_mhz=3800.0,
    cpu_llc_mib=210.0,
    memory_gib=2015.0,
    nics=tuple(("ib%d" % port, 400.0) for port in range(8)),
    disks=tuple(("nvme%dn1" % slot, 1920.0 if slot < 2 else 3840.0) for slot in range(10)),
    pcie_devices=214,
    driver_version="570.124.06",
    cuda_version="12.8",
    kernel="6.8.0-55-generic",
    os="Ubuntu 24.04.2 LTS",
)

# H200: the same GPU with more and faster memory; HBM copy 4.01 TB/s (reference-figures 2).
_H200 = dataclasses.replace(
    _H100, gpu_model="NVIDIA H200", vbios="96.00.BC.00.01", hbm_bytes=143771 * 2**20, hbm_rate=3.94e12
)

MODELS: Dict[str, Model] = {"h100-sxm-8": _H100, "h200-sxm-8": _H200}
"""Models by the name of the SKU file that they stand for."""
