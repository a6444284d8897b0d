"""Removes from a family's index what another metric of the same device explains: a hotter part runs slower.

Inlet, place in the rack and cooling move the clock of healthy parts along with their temperature, so at a given
temperature healthy parts differ less. Bad cooling of a part is found by its thermal resistance; a part that is slow for
its temperature is slow. The slope is estimated from the fleet, and assumed to be constant: a line.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import median_abs_deviation

from muster_criteria.fleet.series.keyed import Codes, Keyed, Numbers, Places, medians, numbered, together

COLUMNS = ("sku", "kind", "metric", "slope")
"""``metric``: name of the index without the explained part. ``slope``: change of the index per change of the explaining
metric, both relative to the peers' median."""

Slopes = Mapping[tuple[str, str, str], float]
"""By SKU, kind and metric."""

_WITHIN = 3.5
"""Robust z (Iglewicz and Hoaglin) beyond which a device is left out: it does not show how healthy ones behave."""
_DEVICES_MIN = 200
"""Fewest devices for a slope; its error then adds a fourteenth of the remaining spread."""


def slopes_of(frame: pd.DataFrame) -> Slopes:
    """The table (columns ``COLUMNS``) as a mapping."""
    rows = zip(*(frame[name] for name in COLUMNS), strict=True)
    return {(str(sku), str(kind), str(metric)): float(slope) for sku, kind, metric, slope in rows}


def estimated_slopes(indices: Keyed, readings: Keyed, ratio: Numbers) -> pd.DataFrame:
    """The slope of each index that has something to explain it, by least squares over devices without outliers."""
    found = []
    for plain, at in _pairs(indices):
        rows = np.flatnonzero(indices.series == plain)
        explains = _explaining(indices.take(rows), readings, ratio, at)
        for code, sku in enumerate(indices.skus):
            chosen = indices.sku[rows] == code
            slope = _slope(explains[chosen], indices.value[rows][chosen] - 1.0)
            if slope is not None:
                key = indices.catalogue[at].key
                found.append((sku, key[0], key[1], slope))
    return pd.DataFrame(found, columns=list(COLUMNS))


def without_given(indices: Keyed, readings: Keyed, ratio: Numbers, slopes: Slopes) -> Keyed:
    """Readings of each index without the explained part; none if that was not measured or no slope is known.

    ``ratio``: of each of ``readings`` to its peers' median. Of repeats, the median explains.
    """
    made = [indices.take(np.empty(0, dtype=np.int64))]
    for plain, at in _pairs(indices):
        kind, metric = indices.catalogue[at].key[:2]
        slope = np.array([slopes.get((sku, kind, metric), np.nan) for sku in indices.skus] or [np.nan])
        chosen = indices.take(np.flatnonzero(indices.series == plain))
        value = chosen.value - slope[chosen.sku] * _explaining(chosen, readings, ratio, at)
        series = np.full(len(chosen), at, dtype=np.int64)
        made.append(chosen.replace(series=series, value=value).take(np.flatnonzero(np.isfinite(value))))
    return functools.reduce(together, made)


def _pairs(indices: Keyed) -> list[tuple[int, int]]:
    """(number of an index, number of the same index without the explained part)."""
    number = {each.comparison.family: at for at, each in enumerate(indices.catalogue) if each.index and not each.given}
    return [(number[each.comparison.family], at) for at, each in enumerate(indices.catalogue) if each.given]


def _explaining(indices: Keyed, readings: Keyed, ratio: Numbers, at: int) -> Numbers:
    """Returns, by index, the distance from peers of the metric that explains series ``at``; NaN if not measured."""
    comparison = indices.catalogue[at].comparison
    explaining = [each.key[:2] == (comparison.device, comparison.given) for each in readings.catalogue]
    rows = np.flatnonzero(np.array(explaining or [False])[readings.series])
    size = readings.visits * len(readings.devices)
    which, known = numbered(_device(readings)[rows], size)
    middle, _ = medians(ratio[rows], which, len(known))
    place = Places.of(known, size).find(_device(indices))
    return np.asarray(np.append(middle, np.nan)[place] - 1.0)


def _device(readings: Keyed) -> Codes:
    return readings.visit * len(readings.devices) + readings.device


def _slope(explains: Numbers, index: Numbers) -> float | None:
    kept = _ordinary(explains) & _ordinary(index)
    if kept.sum() < _DEVICES_MIN:
        return None
    x, y = explains[kept] - explains[kept].mean(), index[kept] - index[kept].mean()
    return float(x @ y / (x @ x)) if np.any(x) else None


def _ordinary(values: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    known = values[np.isfinite(values)]
    if not len(known):
        return np.zeros(len(values), dtype=np.bool_)
    sigma = median_abs_deviation(known, scale="normal")
    return np.asarray(np.abs(values - np.median(known)) <= _WITHIN * sigma)
