"""Fault classes and their severities. A fault alters the physical state of one GPU (a stopped fan: of the two that it
cools); what is measured of it then follows from the physics.

``effect`` is the relative change of the figure that tells of the fault (of a locked clock: on the slowest healthy GPU
in a hundred, which loses least); None for discrete faults, which show as a count, a width or a time that no healthy
GPU has. Severities go down to the edge, where nothing can be found.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt

from tests.bench.accuracy.devices import GPUS, Devices
from tests.bench.accuracy.draws import Array

Group = Literal["low spread", "varied", "thermal", "discrete"]
How = Literal["times", "add", "set"]
Slots = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Severity:
    """How bad: what the fault does to its parameter, and its relative effect."""

    label: str
    value: float
    effect: float | None = None


@dataclasses.dataclass(frozen=True)
class Fault:
    """One class: which parameters (fields of ``Devices``) it alters, and how. ``pair``: it hits slots 2k and 2k+1.

    ``source``: where faults like this were reported, or the severities come from.
    """

    name: str
    group: Group
    parameters: tuple[str, ...]
    how: How
    severities: tuple[Severity, ...]
    source: str
    pair: bool = False

    def hit(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Nodes × GPUs: which GPUs the fault alters, when it strikes slot ``slots[i]`` of node i."""
        gpus = np.arange(GPUS)
        slots_hit = slots[:, None]
        return np.asarray(gpus // 2 == slots_hit // 2 if self.pair else gpus == slots_hit)

    def inflict(self, devices: Devices, slots: Slots, severity: Severity) -> Devices:
        """The same nodes with this fault in each of them."""
        hit = self.hit(slots)
        before = {name: getattr(devices, name) for name in self.parameters}
        after = {name: np.where(hit, self._altered(values, severity.value), values) for name, values in before.items()}
        return dataclasses.replace(devices, **after)

    def _altered(self, before: Array, value: float) -> Array:
        if self.how == "times":
            return before * value
        return before + value if self.how == "add" else np.full_like(before, value)


def _less(*shares: float) -> tuple[Severity, ...]:
    """Severities that take a share off a parameter to which the figure is proportional."""
    return tuple(Severity(f"−{100 * share:g} %", 1.0 - share, share) for share in shares)


def _lost(*shares: float) -> tuple[Severity, ...]:
    return tuple(Severity(f"−{100 * share:g} %", share, share) for share in shares)


def _each(unit: str, *values: float) -> tuple[Severity, ...]:
    return tuple(Severity(f"{value:g} {unit}".strip(), value) for value in values)


FAULTS = (
    Fault("matrix units lost", "low spread", ("lanes_bf16", "lanes_fp8"), "times", _less(0.03, 0.05, 0.10, 0.20),
          "one of 66 TPCs is 1.5 %; fail-slow GPUs 10-20 % slow: GREYHOUND (ATC'25, arXiv 2410.12588)"),
    Fault("one format slow", "low spread", ("lanes_fp8",), "times", _less(0.03, 0.05, 0.10, 0.67),
          "an A100 at one third of its FP32 rate passed the vendor's longest diagnostic: NVIDIA/DCGM issue 122"),
    Fault("HBM slow", "low spread", ("hbm",), "times", _less(0.03, 0.05, 0.10, 0.20),
          "SuperBench (ATC'24, arXiv 2402.06194) rejects nodes whose memory bandwidth is 5 % low"),
    Fault("PCIe replays", "low spread", ("pcie_lost",), "add", _lost(0.03, 0.05, 0.10, 0.25),
          "bandwidth lost to link errors; IBM fails a link at 25 % of its generation's peak"),
    Fault("PCIe speed down", "low spread", ("pcie_generation",), "set",
          (Severity("Gen4", 4.0, 0.5), Severity("Gen3", 3.0, 0.75)),
          "DCGM asks Gen3 or better of an H100, so a card that trained two generations down passes"),
    Fault("NVLink replays", "low spread", ("nvlink_lost",), "add", _lost(0.03, 0.05, 0.10, 0.25),
          "OCI's health checks ask 26 GB/s of each of 18 links"),
    Fault("power not delivered", "low spread", ("power_share",), "times", _less(0.03, 0.05, 0.10, 0.25),
          "DCGM's targeted_power asks for a share of 700 W; GPUs held below their limit: SC'22 (arXiv 2208.11035)"),
    Fault("slow clock", "varied", ("silicon",), "times", _less(0.03, 0.05, 0.08, 0.12, 0.20),
          "fail-slow GPUs of 5-20 %: GREYHOUND; outliers 1.5 times slower: SC'22 (arXiv 2208.11035)"),
    Fault("leakage", "varied", ("leakage_w",), "add",
          (Severity("+40 W", 40.0, 0.03), Severity("+67 W", 67.0, 0.05), Severity("+150 W", 150.0, 0.12)),
          "leakage beyond its part's own: clocks lost to power at the limit, 2208.11035"),
    Fault("clock left locked", "varied", ("clock_cap_mhz",), "set",
          (Severity("1,540 MHz", 1540.0, 0.0), Severity("1,400 MHz", 1400.0, 0.08),
           Severity("1,200 MHz", 1200.0, 0.21)),
          "a diagnostic left a frequency lock altered: ByteRobust (SOSP'25, arXiv 2509.16293)"),
    Fault("paste dried", "thermal", ("resistance",), "times",
          (Severity("R × 1.06", 1.06, 0.055), Severity("R × 1.1", 1.1, 0.095), Severity("R × 1.2", 1.2, 0.19),
           Severity("R × 1.4", 1.4, 0.38)),
          "thermal resistance is to be compared with peers: 15 % and more is a fault (docs/science.md#thermal-checks)"),
    Fault("air blocked", "thermal", ("airflow",), "times",
          (Severity("flow −10 %", 0.9, 0.09), Severity("flow −20 %", 0.8, 0.195), Severity("flow −40 %", 0.6, 0.50)),
          "a stopped fan or a missing baffle: two GPUs get less air (docs/science.md#thermal-checks)", pair=True),
    Fault("overheats", "discrete", ("resistance",), "times", (Severity("R × 2", 2.0), Severity("R × 2.6", 2.6)),
          "thermal slowdown is found in 10 s: ByteRobust (SOSP'25)"),
    Fault("power brake", "discrete", ("brake",), "set", _each("of the time", 0.001, 0.01, 0.1),
          "NVML clocks-event reason 0x80: any time in it fails (docs/science.md#throttle-reasons)"),
    Fault("GPU missing", "discrete", ("present",), "set", (Severity("", 0.0),),
          "XID 79, fallen off the bus; 419 interruptions in 54 days of Llama 3 (arXiv 2407.21783)"),
    Fault("PCIe width", "discrete", ("pcie_width",), "set",
          (Severity("x8", 8.0), Severity("x4", 4.0), Severity("x1", 1.0)),
          "OCI expects x16 at 32 GT/s"),
    Fault("NVLink down", "discrete", ("nvlinks",), "add",
          (Severity("1 of 18", -1.0), Severity("2 of 18", -2.0), Severity("6 of 18", -6.0)),
          "18 NVLinks of an H100 must be up: OCI's health checks"),
    Fault("uncorrectable ECC", "discrete", ("uncorrectable",), "set", _each("/h", 4.0, 40.0, 400.0),
          "mean time between uncorrectable ECC errors is years on sound H100s: NCSA Delta"),
    Fault("wrong products", "discrete", ("upsets",), "set", _each("", 3.3e-6, 1e-4, 1e-2),
          "3.3e-6 takes 24 minutes of products to show (docs/science.md#levels); down to 2e-9: AEGIS (OSDI'26)"),
    Fault("memory loses bits", "discrete", ("flips",), "set", _each("/GiB", 0.001, 0.1, 10.0),
          "bits flip in HBM unseen by ECC: AEGIS (OSDI'26)"),
    Fault("row remap pending", "discrete", ("remap_pending",), "set", (Severity("", 1.0),),
          "the bad row is in use until the next reset: NVML remapped rows"),
)  # fmt: skip
