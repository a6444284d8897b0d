"""Why an NVIDIA GPU holds its clocks down: NVML's reasons, and the fields that count the time in each."""

from __future__ import annotations

HW_SLOWDOWN = "hw_slowdown"
HARMFUL_FIRST = (
    ("hw_thermal", 0x40),
    ("hw_power_brake", 0x80),
    (HW_SLOWDOWN, 0x8),
    ("sw_thermal", 0x20),
    ("board_limit", 0x200),
    ("sw_power_cap", 0x4),
    ("reliability", 0x400),
)
"""Reasons that hold a clock down with NVML's bit for each, the most harmful first. By number: the binding names the two
that driver 615 added by a prefix that it calls deprecated, and the others by another one."""
_HARMLESS = 0x1 | 0x2 | 0x10 | 0x100
"""NVML's bits for what is no throttling: idleness and settings."""
UNKNOWN = "unknown"
"""Any bit that this table does not have: what a later driver adds is not the absence of a reason."""
NAMED_CAUSES = ("hw_thermal", "hw_power_brake")
"""Causes of the hardware's slowdown that nvml.h gives bits of their own, in addition to its general one."""
_POWER_CAP_FIELD = 74
_VIOLATION_FIELD = 75
"""NVML_FI_DEV_PERF_POLICY_THERMAL: nanoseconds held back for heat, by whomever; drivers of all ages have it."""
_THERMAL_FIELDS = (("sw_thermal", 0), ("hw_thermal", 1), ("hw_power_brake", 2))
_THERMAL_FIELDS_SINCE = (((580, 82), 269), ((580, 66), None), ((575, 0), 251))
"""Driver and first of three consecutive field ids, newest first: nvml.h of 575.51 to 580.65 has them at 251, where
newer drivers have power smoothing; that of 580.82 and later has them at 269 (nvidia-ml-py 13.580.65, 13.580.82 and
13.580.126). Where drivers between 580.65 and 580.82 have them is not known, and before 575 there are none."""


def named(reasons: int) -> str:
    """The reasons of NVML's mask, the most harmful first and joined by "+", or "none"."""
    present = [name for name, bit in HARMFUL_FIRST if reasons & bit]
    if any(name in NAMED_CAUSES for name in present):  # the hardware's slowdown is set along with its cause
        present = [name for name in present if name != HW_SLOWDOWN]
    if reasons & ~(_HARMLESS | sum(bit for _, bit in HARMFUL_FIRST)):
        present.append(UNKNOWN)
    return "+".join(present) or "none"


def throttle_fields(driver: str) -> dict[str, int | None]:
    """NVML field ids of the cumulative nanoseconds in each throttle state, by reason; None where none is known.

    "thermal" is heat of either kind, for drivers that do not tell them apart.
    """
    version = tuple(int(part) if part.isdigit() else 0 for part in driver.split(".")[:2]) if driver else ()
    first = next((base for since, base in _THERMAL_FIELDS_SINCE if version >= since), None)
    thermal = {reason: None if first is None else first + offset for reason, offset in _THERMAL_FIELDS}
    fields: dict[str, int | None] = {"sw_power_cap": _POWER_CAP_FIELD, **thermal}
    return {**fields, "thermal": _VIOLATION_FIELD} if version and first is None else fields
