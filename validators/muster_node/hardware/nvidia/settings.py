"""Restores settings of an NVIDIA GPU to inventory values, through NVML; needs root, as the change did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster_node.hardware.nvidia.nvml import Nvml
from muster_node.hardware.seam import Fact

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

_SETTERS = {
    "power_limit": "nvmlDeviceSetPowerManagementLimit",
    "persistence_mode": "nvmlDeviceSetPersistenceMode",
    "compute_mode": "nvmlDeviceSetComputeMode",
    "application_clock": "nvmlDeviceSetApplicationsClocks",
}


def restore_setting(nvml: Nvml, handle: Any, setting: str, facts: Sequence[Fact]) -> str:
    """As ``Hardware.restore_setting``: MIG and ECC modes change only with a reset, which is left to people."""
    if setting not in _SETTERS:
        return "it takes a reset of the GPU"
    arguments = [None if each is None else round(each) for each in _arguments(setting, facts)]
    if None in arguments:
        return "what it was is not known in full"
    if setting == "power_limit":
        # The inventory has the enforced limit; one enforced from outside may be lower, and must not become permanent.
        asked_for = nvml.query("nvmlDeviceGetPowerManagementLimit", handle)
        if asked_for.value is None or asked_for.value >= arguments[0]:
            return asked_for.note or "it may have been held from outside: see who limits the power"
    return nvml.query(_SETTERS[setting], handle, *arguments).note


def _arguments(setting: str, facts: Sequence[Fact]) -> list[float | None]:
    """What NVML's function takes after the handle; None for what is not known."""
    if setting == "application_clock":
        clocks = {fact.labels.get("domain"): fact.value for fact in facts}
        return [clocks.get("memory"), clocks.get("sm")]
    (fact,) = facts
    if setting == "compute_mode":
        return [next((code for code, words in COMPUTE_MODES.items() if words == fact.text), None)]
    return [fact.value if fact.value is None or setting != "power_limit" else 1000.0 * fact.value]
