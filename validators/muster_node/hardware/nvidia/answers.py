"""Answers of NVML as facts: a number, a text, or the reason why there is neither."""

from __future__ import annotations

import math

from muster_node.hardware.nvidia.nvml import ALL_ONES, Answer
from muster_node.hardware.seam import NOT_SUPPORTED, Fact

_MOST = {
    "pcie_generation": 15.0,
    "pcie_generation_max": 15.0,
    "pcie_width": 32.0,
    "pcie_width_max": 32.0,
    "nvlink_speed": 1000.0,
    "hbm_total": 16_384.0,
    "power_limit": 20_000.0,
    "power_limit_default": 20_000.0,
    "power_limit_min": 20_000.0,
    "power_limit_max": 20_000.0,
    "max_clock": 20_000.0,
    "application_clock": 20_000.0,
    "application_clock_default": 20_000.0,
    "utilisation": 100.0,
    "clock_share": 200.0,
}
_MOST_IN = {"bool": 1.0, "s": 1e9, "count": 2.0**53}
"""By fact, and else by unit: the highest number that is one. Chosen here, some ten times what any GPU of today has; a
time of thirty years; a count that a float holds exactly. Rules ask for "at least" so much, which garbage would pass."""


def usable(answer: Answer) -> bool:
    """Whether the answer is a number."""
    return isinstance(answer.value, (int, float)) and math.isfinite(answer.value)


def number(name: str, device: str, unit: str, answer: Answer, labels: dict[str, str] | None = None) -> Fact:
    """The answer as a number in ``unit``; a value that is impossible for the name becomes a note."""
    why = answer.note or ("" if usable(answer) else "NVML gave no number")
    if not why:
        why = _impossible(answer.value, _MOST.get(name, _MOST_IN.get(unit, math.inf)))
    if why:
        return Fact(name, device, unit, labels=labels or {}, note=why)
    return Fact(name, device, unit, float(answer.value), labels=labels or {})


def _impossible(value: float, most: float) -> str:
    if value in ALL_ONES:
        return "NVML: all bits are set, which is no number"
    return "" if 0.0 <= value <= most else f"NVML: it says {value:g}, which it cannot be"


def text(name: str, device: str, answer: Answer) -> Fact:
    """The answer as a text."""
    value = None if answer.value is None else str(answer.value)
    return Fact(name, device, "text", text=value, note=answer.note or ("" if value is not None else NOT_SUPPORTED))
