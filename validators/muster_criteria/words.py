"""Figures and lists in sentences."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator

from muster_criteria.model import Gap

_UNITLESS = ("count", "text", "bool", "1", "")


def figure(value: float, unit: str, unlike: float | None = None, digits: int = 4) -> str:
    """A value with its unit, in so many significant digits or as many as distinguish it from ``unlike``.

    Booleans are yes or no; counts and ratios have no unit.
    """
    if unit == "bool" and value in (0.0, 1.0):
        return "yes" if value else "no"
    text = number(value, digits if unlike is None else apart([(value, unlike)], digits))
    return text if unit in _UNITLESS else f"{text} {unit}"


def against(value: float, limit: float, unit: str, digits: int = 4) -> tuple[str, str]:
    """A value that is beyond a limit, and the limit, so that they do not read as if it held."""
    return figure(value, unit, limit, digits), figure(limit, unit, value, digits)


def apart(pairs: Iterable[tuple[float, float]], digits: int = 4) -> int:
    """In how many significant digits, at least ``digits``, the numbers of each pair differ that are not alike."""
    for one, other in pairs:
        if one != other:
            digits = next((n for n in range(digits, 18) if number(one, n) != number(other, n)), digits)
    return digits


def beyond(rows: Iterable[tuple[float | None, float | None, float | None]]) -> Iterator[tuple[float, float]]:
    """(value, limit) of each value that lies beyond its floor or ceiling: ``apart``, they do not read as if it held.

    ``rows``: (value, floor, ceiling).
    """
    for value, floor, ceiling in rows:
        if value is not None and floor is not None and value < floor:
            yield value, floor
        if value is not None and ceiling is not None and value > ceiling:
            yield value, ceiling


def number(value: float, digits: int = 4) -> str:
    """So many significant digits, thousands separated; whole numbers stay whole: "1,048,576", "98.24", "0.003"."""
    if not math.isfinite(value) or abs(value) >= 1e15:
        return f"{value:.{digits}g}"
    if value == int(value):
        return f"{int(value):,}"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4:
        return f"{value:.{digits}g}"
    text = f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


PCIE_GENERATION = ("pcie_generation", "pcie_generation_max", "pcie_generation_loaded")
PCIE_GT = {1: 2.5, 2: 5, 3: 8, 4: 16, 5: 32, 6: 64, 7: 128}
"""GT/s of a lane by PCIe generation (PCI Express base specification)."""


def measured(metric: str, value: float, unit: str, unlike: float | None = None) -> str:
    """The figure of a metric: "PCIe 5.0 (32 GT/s)" of a generation."""
    if metric not in PCIE_GENERATION:
        return figure(value, unit, unlike)
    rate = PCIE_GT.get(int(value))
    return f"PCIe {value:g}.0 ({rate:g} GT/s)" if rate else f"PCIe generation {value:g}"


def duration(seconds: float | None) -> str:
    """Seconds with a fitting unit: "2.4 s", "45 s", "2 min 05 s", "12 min", "3 h 20 min", "8.5 days"; "–": unknown."""
    if seconds is None:
        return "–"
    if seconds < 59.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 599.5:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes >= 7 * 1440:
        return f"{minutes / 1440:.1f} days"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def listed(names: list[str], most: int = 4) -> str:
    """ "a, b and c", or "a, b, c, d and 5 more"."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def unlike(key: str, others: Iterable[str]) -> str:
    """What distinguishes a key ("NAME=VALUE; NAME=VALUE") from the most common of the others; all of it without any.

    >>> unlike("key=f3; cuda=12.8; torch=2.9", ["key=a0; cuda=12.6; ecc_mode=1; torch=2.9"])
    'cuda 12.8 instead of 12.6 and ecc_mode not read instead of 1'
    """
    usual = max(collections.Counter(others).items(), key=lambda item: (item[1], item[0]), default=("", 0))[0]
    if not usual:
        return key
    mine, theirs = (dict(part.split("=", 1) for part in text.split("; ") if "=" in part) for text in (key, usual))
    names = sorted({*mine, *theirs} - {"key"})  # which is the digest of all the others
    read = [(name, mine.get(name, "not read"), theirs.get(name, "not read")) for name in names]
    return listed([f"{name} {own} instead of {other}" for name, own, other in read if own != other]) or key


ALIKE_MIN = 3


def by_cause(missing: Iterable[Gap]) -> list[str]:
    """Sentences "METRIC on DEVICE: WHY", with one for all of several metrics and devices that share a cause.

    A driver that hangs costs eight GPUs twenty figures each: that is one fault.
    """
    causes: dict[tuple[str, bool], list[Gap]] = collections.defaultdict(list)
    for gap in missing:
        causes[gap.why, bool(gap.device)].append(gap)
    lines: list[str] = []
    for (why, of_device), given in causes.items():
        metrics = list(dict.fromkeys(gap.what for gap in given))
        if not of_device or len(given) < ALIKE_MIN or len(metrics) == 1:
            lines += map(str, given)
            continue
        devices = list(dict.fromkeys(gap.device for gap in given))
        count = f"{len(given)} measurements ({listed(metrics, 6)})"
        lines.append(f"{count} on {listed(devices, 8)}: {why}")
    return lines
