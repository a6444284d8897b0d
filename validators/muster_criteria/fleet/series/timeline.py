"""Timelines: the last few visits of each device, in time order, as one row of numbers for each of its series."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.fleet.series.keyed import Codes, Numbers, medians

Matrix = npt.NDArray[np.float32]

VISITS_MAX = 8
"""Earlier visits kept for each series: enough for a median, and 32 bytes a series."""


_BLOCK = 50_000
"""Rows processed at a time: few enough for a processor's cache."""
_FAR = 1e30
"""Largest distance from a reference, to which others are cut: larger ones overflow numbers of 32 bits."""


@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """``owners``: the owner of each row; ``values``: a column per visit, the latest last, NaN before the first one."""

    owners: Codes
    values: Matrix


def timeline(owner: Codes, day: Codes, value: Numbers) -> Timeline:
    """Timelines of these readings; several values of an owner on one day count once, as their median."""
    known = np.isfinite(value)
    owner, day, value = owner[known], day[known], np.clip(value[known], -_FAR, _FAR)
    if not len(owner):
        return Timeline(np.empty(0, dtype=np.int64), np.empty((0, VISITS_MAX), dtype=np.float32))
    first_day = int(day.min())
    days = int(day.max()) - first_day + 1
    visit, distinct = pd.factorize(owner * days + (day - first_day))
    if len(distinct) != len(visit):
        value, _ = medians(value, visit.astype(np.int64), len(distinct))
    else:
        distinct = owner * days + (day - first_day)
    order = np.argsort(distinct, kind="stable")
    whose = distinct[order] // days
    starts = np.flatnonzero(np.diff(whose, prepend=whose[0] - 1))
    counts = np.diff(starts, append=len(whose))
    from_end = np.repeat(starts + counts, counts) - np.arange(len(whose)) - 1
    row = np.repeat(np.arange(len(starts)), counts)
    kept = from_end < VISITS_MAX
    values = np.full((len(starts), VISITS_MAX), np.nan, dtype=np.float32)
    values[row[kept], VISITS_MAX - 1 - from_end[kept]] = value[order][kept]
    return Timeline(whose[starts], values)


def row_medians(values: Matrix) -> Numbers:
    """The median of each row, NaN where it has no value; some rows at a time, to save memory."""
    blocks = [values[start : start + _BLOCK] for start in range(0, len(values), _BLOCK)]
    return np.concatenate([_medians(block) for block in blocks]) if blocks else np.empty(0)


def _medians(values: Matrix) -> Numbers:
    columns: list[Matrix] = []
    count = np.zeros(len(values), dtype=np.int8)
    for visit in values.T:
        known = np.isfinite(visit)
        if known.any():
            columns.append(np.where(known, visit, np.float32(np.inf)))
            count += known
    if not columns:
        return np.full(len(values), np.nan)
    # Sorts all rows at once by exchanging values between columns: faster than sorting rows, as columns are few.
    for end in range(len(columns) - 1, 0, -1):
        for at in range(end):
            one, other = columns[at : at + 2]
            columns[at : at + 2] = np.minimum(one, other), np.maximum(one, other)
    low, high = columns[0], columns[0]
    for at, visit in enumerate(columns[1 : len(columns) // 2 + 1], 1):
        low, high = np.where((count - 1) // 2 >= at, visit, low), np.where(count // 2 >= at, visit, high)
    return np.where(count > 0, (low.astype(np.float64) + high.astype(np.float64)) / 2.0, np.nan)
