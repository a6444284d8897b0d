"""Hardware models that can be simulated: one entry each, data only.

Figures that vendors or operators publish are anchors, with their source. What is not published (idle power, thermal
resistance, time constants, spreads) is a plausible choice of this simulation and is quoted nowhere.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Model:
    """A hardware model; ``machine`` draws each machine around its figures.

    ``work_per_clock`` is TFLOPS (int8: TOPS) per GHz of SM clock in a large GEMM, by dtype. ``gemm_clock_mhz`` is the
    SM clock that a typical part holds in such a GEMM at ``power_limit_w`` with its core at ``rated_core_c``. Rates are
    bytes/s, temperatures °C, power W, resistances °C/W, sizes bytes. ``liquid``: GPUs are cooled by what comes in at
    ``coolant_c``, the rest of the machine by air at ``inlet_c``. ``c2c_rate``: of each direction between GPU and CPU
    where they are joined without PCIe; such a GPU has no PCIe link of its own.
    """

    gpu_model: str
    gpu_count: int
    vbios: str
    hbm_bytes: int
    hbm_rate: float
    work_per_clock: dict[str, float]
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
    hbm_max_c: float
    slowdown_c: float
    slowdown_release_c: float
    inlet_c: float
    liquid: bool
    coolant_c: float
    nvlinks: int
    nvlink_generation: int
    nvlink_rate: float
    c2c_rate: float
    pcie_generation: int
    pcie_width: int
    fans: int
    fan_rpm: float
    architecture: str
    cpu_model: str
    cpu_microcode: str
    cpu_sockets: int
    cpu_cores: int
    cpu_threads: int
    cpu_vector_bits: int
    cpu_max_clock_mhz: float
    cpu_llc_mib: float
    memory_gib: float
    nics: tuple[tuple[str, float], ...]
    disks: tuple[tuple[str, float], ...]
    pcie_devices: int
    driver_version: str
    cuda_version: str
    kernel: str
    os: str

    @property
    def supply_c(self) -> float:
        """Temperature of what the GPUs' heat goes into."""
        return self.coolant_c if self.liquid else self.inlet_c


# Slowdown 89 °C and GPU max-op 87 °C: 700 W Hopper, NVML/DCGM thresholds; HBM throttles at 95 °C, here of every model
# (docs/science.md#temperature-limits). The best published bf16 GEMM on an H100 SXM is 794.5 TFLOPS on the best shape
# of a good part, fp8 8192³ 1290 (Azure/AI-benchmarking-guide): a typical part of ours does 0.94 of that. HBM copy
# 2.90 TB/s (Azure/AI-benchmarking-guide), 26,562 MB/s an NVLink and direction (NVIDIA Health Validation).
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
    hbm_max_c=95.0,
    slowdown_c=89.0,
    slowdown_release_c=84.0,
    inlet_c=24.0,
    liquid=False,
    coolant_c=24.0,
    nvlinks=18,
    nvlink_generation=4,
    nvlink_rate=26.562e9,
    c2c_rate=0.0,
    pcie_generation=5,
    pcie_width=16,
    fans=6,
    fan_rpm=12000.0,
    architecture="x86_64",
    cpu_model="Intel(R) Xeon(R) Platinum 8480C",
    cpu_microcode="0x2b000603",
    cpu_sockets=2,
    cpu_cores=112,
    cpu_threads=224,
    cpu_vector_bits=512,
    cpu_max_clock_mhz=3800.0,
    cpu_llc_mib=210.0,
    memory_gib=2015.0,
    nics=tuple((f"ib{port}", 400.0) for port in range(8)),
    disks=tuple((f"nvme{slot}n1", 1920.0 if slot < 2 else 3840.0) for slot in range(10)),
    pcie_devices=214,
    driver_version="570.124.06",
    cuda_version="12.8",
    kernel="6.8.0-55-generic",
    os="Ubuntu 24.04.2 LTS",
)

# H200: the same GPU with more and faster memory; HBM copy 4.01 TB/s, fp8 8192³ 1300.6 TFLOPS
# (Azure/AI-benchmarking-guide).
_H200 = dataclasses.replace(
    _H100,
    gpu_model="NVIDIA H200",
    vbios="96.00.BC.00.01",
    hbm_bytes=143771 * 2**20,
    hbm_rate=3.94e12,
    work_per_clock={**_H100.work_per_clock, "fp8": 755.0, "int8": 755.0},
)

# B200. Best published GEMMs: bf16 1745.0, fp8 3432.5 TFLOPS (stas00/ml-engineering), of which a
# typical simulated part reaches 0.94. NVIDIA's HGX B200 datasheet gives the ratios of tf32 to bf16 (1:2) and of int8 to
# fp8 (1:1), and the ratio of fp64 (37 TFLOPS) to fp32 (75 TFLOPS). 1000 W, 180 GB, 7.7 TB/s, PCIe Gen5 x16, 18 NVLinks
# of 50 GB/s a direction: the same datasheet. What copies reach of it on a B200 is not published; the share here is
# that of GB200's 7.35 TB/s (Azure, as an excerpt), of 8. 183,359 MiB, and 136 to 145 W at rest: nvidia-smi of B200
# nodes, as their users show it. Slowdown 3 °C above max-op: NVSentinel ADR-042; max-op itself is this simulation's
# choice. Eight ports of 400 Gb/s and two Xeon 8570: NVIDIA DGX B200 datasheet.
_B200 = dataclasses.replace(
    _H100,
    gpu_model="NVIDIA B200",
    vbios="97.00.88.00.0F",
    hbm_bytes=183359 * 2**20,
    hbm_rate=7.07e12,
    work_per_clock={
        "bf16": 1051.0,
        "fp16": 1051.0,
        "tf32": 525.0,
        "fp8": 2068.0,
        "int8": 2068.0,
        "fp64": 17.3,
        "fp32": 35.0,
    },
    gemm_clock_mhz=1560.0,
    boost_clock_mhz=1965.0,
    idle_clock_mhz=120.0,
    power_limit_w=1000.0,
    idle_power_w=95.0,
    leakage_w=85.0,
    rated_core_c=64.0,
    thermal_resistance=0.040,
    gpu_max_c=87.0,
    hbm_max_c=95.0,
    slowdown_c=90.0,
    slowdown_release_c=85.0,
    nvlink_generation=5,
    nvlink_rate=50e9,
    fans=10,
    cpu_model="Intel(R) Xeon(R) Platinum 8570",
    cpu_microcode="0x21000291",
    cpu_llc_mib=600.0,
    driver_version="570.133.20",
)

# GB200 NVL72, one compute tray: four GPUs, two Grace CPUs. Best published GEMMs: bf16 1822.0, fp8 3615.6 TFLOPS
# (stas00/ml-engineering), of which a typical part of ours does 0.94; the other formats as on B200 (fp64 40, fp32 80
# TFLOPS of peak: NVIDIA GB200 NVL72 datasheet). Memory 7.35 TB/s of 8 (Azure blog, as an excerpt,
# Azure/AI-benchmarking-guide). 1200 W, 186 GB, NVLink-C2C of 900 GB/s in both directions together, 72 cores of Arm
# Neoverse V2 and 480 GB a CPU, four ports of 400 Gb/s: the same datasheet. 189,471 MiB, and 156 to 181 W at rest:
# nvidia-smi of GB200 trays, as their users show it. NVLink 53,125 MB/s a link and direction (NVIDIA Health
# Validation). Slowdown 87 °C: gpud (docs/science.md#temperature-limits), and 2 °C above max-op: NVSentinel ADR-042.
# The GPUs sit under cold plates; the temperature of what comes in to them is this simulation's choice.
_GB200 = dataclasses.replace(
    _B200,
    gpu_model="NVIDIA GB200",
    gpu_count=4,
    vbios="97.00.B9.00.69",
    hbm_bytes=189471 * 2**20,
    hbm_rate=7.2e12,
    gemm_clock_mhz=1630.0,
    work_per_clock={
        "bf16": 1051.0,
        "fp16": 1051.0,
        "tf32": 525.0,
        "fp8": 2085.0,
        "int8": 2085.0,
        "fp64": 17.8,
        "fp32": 35.6,
    },
    boost_clock_mhz=2062.0,
    power_limit_w=1200.0,
    idle_power_w=115.0,
    leakage_w=95.0,
    rated_core_c=62.0,
    thermal_resistance=0.027,
    core_seconds=15.0,
    hbm_seconds=30.0,
    preheat_per_w=0.0,
    gpu_max_c=85.0,
    hbm_max_c=95.0,
    slowdown_c=87.0,
    slowdown_release_c=83.0,
    liquid=True,
    coolant_c=30.0,
    nvlink_rate=53.125e9,
    c2c_rate=450e9,
    pcie_generation=0,
    pcie_width=0,
    fans=8,
    architecture="aarch64",
    cpu_model="Neoverse-V2",
    cpu_microcode="",
    cpu_cores=144,
    cpu_threads=144,
    cpu_vector_bits=128,
    cpu_max_clock_mhz=3438.0,
    cpu_llc_mib=228.0,
    memory_gib=878.0,
    nics=tuple((f"ib{port}", 400.0) for port in range(4)),
    pcie_devices=96,
    kernel="6.8.0-1028-nvidia-64k",
)

MODELS: dict[str, Model] = {
    "h100-sxm-8": _H100,
    "h200-sxm-8": _H200,
    "b200-sxm-8": _B200,
    "gb200-nvl72": _GB200,
}
"""Models by the name of the SKU file that they stand for."""
