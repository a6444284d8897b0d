"""Figures and lists in sentences."""

from __future__ import annotations

import math

_UNITLESS = ("count", "text", "1")


def figure(value: float, unit: str, beside: float | None = None) -> str:
    """A value with its unit, in four significant digits or as many as distinguish it from ``beside``."""
    if unit == "bool" and value in (0.0, 1.0):
        return "yes" if value else "no"
    text = _digits(value, 4)
    if beside is not None and beside != value:
        text = next((longer for n in range(4, 18) if (longer := _digits(value, n)) != _digits(beside, n)), text)
    return text if unit in _UNITLESS else f"{text} {unit}"


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
