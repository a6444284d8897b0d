"""Figures and lists in sentences."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterable

_UNITLESS = ("count", "text", "1")


def figure(value: float, unit: str, beside: float | None = None) -> str:
    """A value with its unit, in four significant digits or as many as distinguish it from ``beside``."""
    if unit == "bool" and value in (0.0, 1.0):
        return "yes" if value else "no"
    text = _digits(value, 4)
    if beside is not None and beside != value:
        text = next((longer for n in range(4, 18) if (longer := _digits(value, n)) != _digits(beside, n)), text)
    return text if unit in _UNITLESS else f"{text} {unit}"


PCIE_GT = {1: 2.5, 2: 5, 3: 8, 4: 16, 5: 32, 6: 64, 7: 128}
"""GT/s of a lane by PCIe generation (PCI Express base specification)."""


def pcie_speed(generation: float) -> str:
    """ "PCIe 5.0 (32 GT/s)"."""
    rate = PCIE_GT.get(int(generation))
    return f"PCIe {generation:g}.0 ({rate:g} GT/s)" if rate else f"PCIe generation {generation:g}"


def duration(seconds: float | None) -> str:
    """Seconds with a fitting unit: "2.4 s", "45 s", "12 min", "3 h 20 min", "8.5 days"; "–" where unknown."""
    if seconds is None:
        return "–"
    if seconds < 119.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes >= 7 * 1440:
        return f"{minutes / 1440:.1f} days"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _digits(value: float, digits: int) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 12)}f}" if abs(value) < 1e15 and decimals <= 12 else f"{value:.{digits}g}"


def listed(names: list[str], most: int = 4) -> str:
    """ "a, b and c", or "a, b, c, d and 5 more"."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


_MISSING = re.compile(r"(?P<what>.+?) on (?P<device>[a-z]+[0-9]*(?::\S+)?): (?P<why>.+)", re.DOTALL)
ALIKE_MIN = 3


def by_cause(missing: Iterable[str]) -> list[str]:
    """Sentences "METRIC on DEVICE: WHY", with one for all of several metrics and devices that share a cause.

    A driver that hangs costs eight GPUs twenty figures each: that is one fault.
    """
    causes: dict[str, list[tuple[str, str, str]]] = collections.defaultdict(list)
    for sentence in missing:
        found = _MISSING.fullmatch(sentence)
        what, device, why = found.group("what", "device", "why") if found else ("", "", sentence)
        causes[why].append((what, device, sentence))
    lines = []
    for why, given in causes.items():
        metrics = list(dict.fromkeys(what for what, _, _ in given))
        if len(given) < ALIKE_MIN or len(metrics) == 1:
            lines += [sentence for _, _, sentence in given]
            continue
        devices = list(dict.fromkeys(device for _, device, _ in given))
        count = f"{len(given)} measurements ({listed(metrics, 6)})"
        lines.append(f"{count} on {listed(devices, 8)}: {why}")
    return lines
