"""Restores settings of an NVIDIA GPU to inventory values, through NVML; needs root, as the change did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from muster_node.hardware.nvidia.nvml import Nvml
from muster_node.hardware.seam import Fact

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

Call = tuple[str, tuple[int, ...]]
"""An NVML function, and its arguments after the handle."""


def restore_setting(nvml: Nvml, handle: Any, setting: str, facts: Sequence[Fact]) -> str:
    """As ``Hardware.restore_setting``: MIG and ECC modes change only with a reset, which is left to people."""
    if setting not in _CALLS:
        return "it takes a reset of the GPU"
    call = _CALLS[setting](facts)
    if call is None:
        return "what it was is not known in full"
    function, arguments = call
    if setting == "power_limit":
        # The inventory has the enforced limit; one enforced from outside may be lower, and must not become permanent.
        asked_for = nvml.query("nvmlDeviceGetPowerManagementLimit", handle)
        if asked_for.value is None or asked_for.value >= arguments[0]:
            return asked_for.note or "it may have been held from outside: see who limits the power"
    return nvml.query(function, handle, *arguments).note


def _number(facts: Sequence[Fact]) -> float | None:
    return facts[0].value if facts else None


def _power_limit(facts: Sequence[Fact]) -> Call | None:
    watts = _number(facts)
    return None if watts is None else ("nvmlDeviceSetPowerManagementLimit", (round(watts * 1000.0),))


def _persistence_mode(facts: Sequence[Fact]) -> Call | None:
    on = _number(facts)
    return None if on is None else ("nvmlDeviceSetPersistenceMode", (int(on),))


def _compute_mode(facts: Sequence[Fact]) -> Call | None:
    codes = [code for code, words in COMPUTE_MODES.items() if facts and facts[0].text == words]
    return ("nvmlDeviceSetComputeMode", (codes[0],)) if codes else None


def _application_clock(facts: Sequence[Fact]) -> Call | None:
    clocks = {fact.labels.get("domain"): fact.value for fact in facts}
    memory, sm = clocks.get("memory"), clocks.get("sm")
    if memory is None or sm is None:
        return None
    return "nvmlDeviceSetApplicationsClocks", (int(memory), int(sm))


_CALLS: dict[str, Callable[[Sequence[Fact]], Call | None]] = {
    "power_limit": _power_limit,
    "persistence_mode": _persistence_mode,
    "compute_mode": _compute_mode,
    "application_clock": _application_clock,
}
