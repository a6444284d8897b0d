"""How long temperatures take to settle under load, and how fast they fall after it.

Pure functions of time series; a series that is too short or too flat gives no figure and the reason. Definitions:
docs/science.md#cooling-and-power.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from typing import Optional

from muster_node.workloads.common import median

STEADY_C = 1.0
"""°C about the settled mean within which a temperature counts as steady: sensors report whole degrees."""
FEWEST_READINGS = 10
LEAST_FALL_C = 5.0
"""Smallest fall, in °C, that is fitted; a smaller one is too few steps of a sensor in whole degrees."""
CONSTANTS_WATCHED = 2.0
"""Time constants that must have passed; before that, the temperature at which the fall ends is uncertain."""
LEAST_SHARE_OF_POWER = 0.2
"""Smallest share of the power under load by which it must fall: what differs of two like powers is noise."""
_NEIGHBOURS = 2
_GRID = 60
_REFINEMENTS = 2

Figure = tuple[Optional[float], str]
"""A value; or None, and why there is none."""


def time_to_steady(times: Sequence[float], readings: Sequence[float], began: float, settled_from: int) -> Figure:
    """Seconds from ``began`` until readings (°C) stay within 1 °C of the mean of those from ``settled_from`` on.

    Each counts as the median of itself and two on either side, so that one outlier does not count. Raises
    ValueError for no readings.
    """
    settled = mean(readings[settled_from:])
    smooth = [median(readings[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS + 1]) for place in range(len(readings))]
    outside = [place for place, reading in enumerate(smooth) if abs(reading - settled) > STEADY_C]
    first = outside[-1] + 1 if outside else 0
    if first > settled_from:
        return None, f"not steady: more than {STEADY_C:g} °C from its mean within the part that should be settled"
    return max(0.0, times[first] - began), ""


def cooldown_constant(times: Sequence[float], readings: Sequence[float]) -> Figure:
    """Time constant in s of the exponential that fits readings (°C) after a load best, by least squares."""
    watched = times[-1] - times[0] if times else 0.0
    if len(readings) < FEWEST_READINGS or watched <= 0:
        return None, f"{len(readings)} readings of the cool-down are too few"
    fall = readings[0] - readings[-1]
    if fall < LEAST_FALL_C:
        return None, f"it cooled by {fall:.0f} °C only, too little to fit"
    shortest = watched / (len(times) - 1)
    constant = _best_constant(times, readings, shortest / 2.0, watched)
    if constant * CONSTANTS_WATCHED > watched:
        return None, f"watched for {watched:.0f} s, less than {CONSTANTS_WATCHED:g} time constants"
    if constant < shortest:
        return None, "it cools faster than it is read"
    return constant, ""


def resistance_of_fall(
    load: tuple[Sequence[float], Sequence[float]], cooled: tuple[Sequence[float], Sequence[float]]
) -> Figure:
    """Fall of temperature over fall of power, in °C/W, from the settled load to the end of the cool-down.

    Each pair is readings of temperature (°C) and power (W). By Newton's law T = T_air + R·P at rest, so the unknown
    T_air cancels as long as it does not move meanwhile. The cool-down ends before the device is at rest, so the figure
    is R·(1 − e^(−t/τ)): below R, and to be compared only with devices that cooled for as long.
    """
    if not all((*load, *cooled)):
        return None, "the node reads no inlet temperature, and temperature and power not throughout load and cool-down"
    (hot_c, hot_w), (cool_c, cool_w) = [[mean(readings) for readings in pair] for pair in (load, cooled)]
    if hot_w - cool_w < LEAST_SHARE_OF_POWER * hot_w:
        return None, f"no inlet temperature, and its power fell from {hot_w:.0f} to {cool_w:.0f} W only after the load"
    if hot_c - cool_c < LEAST_FALL_C:
        return None, f"no inlet temperature, and it cooled by {hot_c - cool_c:.0f} °C only after the load"
    return (hot_c - cool_c) / (hot_w - cool_w), ""


def _best_constant(times: Sequence[float], readings: Sequence[float], low: float, high: float) -> float:
    """By a search in equal ratios, then again between the neighbours of the best."""
    best = low
    for _ in range(1 + _REFINEMENTS):
        ratio = (high / low) ** (1.0 / _GRID)
        grid = [low * ratio**step for step in range(_GRID + 1)]
        place = min(range(len(grid)), key=lambda step: _residual(times, readings, grid[step]))
        best = grid[place]
        low, high = grid[max(0, place - 1)], grid[min(_GRID, place + 1)]
    return best


def _residual(times: Sequence[float], readings: Sequence[float], constant: float) -> float:
    """What the best line through readings against exp(−t/constant) leaves of their squares."""
    shapes: list[float] = [math.exp((times[0] - moment) / constant) for moment in times]
    middle, level = mean(shapes), mean(readings)
    together = sum((shape - middle) * (reading - level) for shape, reading in zip(shapes, readings))
    slope = together / sum((shape - middle) ** 2 for shape in shapes)
    return sum((reading - level - slope * (shape - middle)) ** 2 for shape, reading in zip(shapes, readings))
