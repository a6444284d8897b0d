"""Answers of NVML as facts: a number, a text, or the reason why there is neither."""

from __future__ import annotations

import math

from muster_node.hardware.nvidia.nvml import ALL_ONES, Answer
from muster_node.hardware.seam import NOT_SUPPORTED, Fact


def usable(answer: Answer) -> bool:
    """Whether it is a number."""
    return isinstance(answer.value, (int, float)) and math.isfinite(answer.value)


def number(name: str, device: str, unit: str, answer: Answer, labels: dict[str, str] | None = None) -> Fact:
    """The answer as a number in ``unit``; one with all bits set is none, whatever it was read out of."""
    if usable(answer) and answer.value not in ALL_ONES:
        return Fact(name, device, unit, float(answer.value), labels=labels or {})
    otherwise = "NVML: all bits are set, which is no number" if usable(answer) else "NVML gave no number"
    return Fact(name, device, unit, labels=labels or {}, note=answer.note or otherwise)


def text(name: str, device: str, answer: Answer) -> Fact:
    """The answer as a text."""
    value = None if answer.value is None else str(answer.value)
    return Fact(name, device, "text", text=value, note=answer.note or ("" if value is not None else NOT_SUPPORTED))
