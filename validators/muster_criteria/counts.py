"""Rates of counted events with their exact intervals. Pure."""

from __future__ import annotations

CONFIDENCE = 0.9


def rate_limits(events: float, exposure: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of a Poisson rate, in events for each unit of ``exposure``.

    Garwood 1936: events n in an exposure T have the limits chi2(α/2, 2n)/2T and chi2(1-α/2, 2n+2)/2T. Without events
    the lower limit is 0, and the upper one has all of α. Raises ValueError unless the exposure is positive.
    """
    if exposure <= 0 or events < 0:
        raise ValueError(f"a rate needs an exposure above 0 and events from 0 on, not {exposure!r} and {events!r}")
    from scipy.stats import chi2  # heavy: not where a DAG file is parsed

    tail = (1.0 - confidence) / 2.0 if events else 1.0 - confidence
    low = float(chi2.ppf(tail, 2 * events)) / (2.0 * exposure) if events else 0.0
    return low, float(chi2.ppf(1.0 - tail, 2 * events + 2)) / (2.0 * exposure)
