"""Seconds since boot, by the clock of the system and by that of the kernel log."""

from __future__ import annotations

import time

from muster_node.hardware.host.sysfs import Files

CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
STEERED = ("hpet", "acpi_pm", "refined-jiffies", "jiffies")
"""Sources to which the kernel falls back from a processor's counter that is unfit."""


def uptime(files: Files) -> float | None:
    """Seconds since boot."""
    words = files.text("/proc/uptime").split()
    return float(words[0]) if words else None


def log_clock(files: Files) -> float | None:
    """Seconds since boot by a clock that runs like the kernel log's time stamps, which NTP does not steer: at 30 ppm
    these differ from the uptime by minutes after half a year. None if the processor's counter is unfit: then NTP steers
    the stamps too."""
    steered = files.text(CLOCK_SOURCE).strip() in STEERED
    return None if steered else time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
