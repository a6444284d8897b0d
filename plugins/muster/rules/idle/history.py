"""Faults that a fleet has had, and what they say of each unit at a time: the clocks of its hazard. Pure, by arrays.

A unit is what fails and is tested: a node, or one stay of a part at a place where a record follows parts. Times are
hours since any fixed moment, never negative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

GROUPS = ("compute", "memory", "links", "cooling", "corruption", "power", "fans", "board", "unknown")
"""Groups of defects, by the part of a node that they are in; ``unknown``: a fault whose part is not known."""

NEVER_H = np.inf
NEIGHBOURS_H = 30 * 24.0
"""How long a failed neighbour counts."""
NEIGHBOURS_MAX = 3
_SPAN = 2.0**24
"""Hours, more than any record has: keeps the times of one key apart from those of the next."""


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """``start``, ``end``: in hours, when each was in service. ``part``, ``place``: which part it is, and where; the
    same number twice where a unit is one machine. Muster's own units always are: the two differ in one public record
    alone, of GPUs that were moved between places. ``rack``: -1 if unknown. ``labels``: units × kinds of label that
    units may share (batch, place in the rack), -1 if unknown.
    """

    start: Numbers
    end: Numbers
    part: Whole
    place: Whole
    rack: Whole
    labels: Whole

    def __len__(self) -> int:
        return len(self.start)


@dataclasses.dataclass(frozen=True, eq=False)
class Faults:
    """Faults of units: ``group`` (an index into GROUPS), ``at`` (hours), ``back`` in service (hours; inf: not yet).

    ``part``, ``place``, ``rack``: those of the unit at that time; ``part`` is negative if it was replaced.
    """

    unit: Whole
    group: Whole
    at: Numbers
    back: Numbers
    part: Whole
    place: Whole
    rack: Whole

    def __len__(self) -> int:
        return len(self.unit)

    def pick(self, which: Flags | Whole) -> Faults:
        """Returns these faults only."""
        return Faults(*(getattr(self, field.name)[which] for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True, eq=False)
class Clocks:
    """For each row (one unit at one time), hours since the last return from a fault, ``since_any`` of its part and
    ``since_same`` (rows × groups) of its part with the same group; ``since_swap``: since the place got another part
    after a fault. All inf if there was none. ``neighbours``: faults of others in its rack in ``NEIGHBOURS_H``, at most
    ``NEIGHBOURS_MAX``. ``labels``: rows × kinds.
    """

    since_any: Numbers
    since_same: Numbers
    since_swap: Numbers
    neighbours: Whole
    labels: Whole

    def pick(self, which: Flags | Whole | slice) -> Clocks:
        """Returns the clocks of these rows."""
        return Clocks(*(getattr(self, field.name)[which] for field in dataclasses.fields(self)))

    @classmethod
    def without_faults(cls, rows: int, labels: int = 0) -> Clocks:
        """Returns the clocks of units that never failed."""
        return cls(
            np.full(rows, NEVER_H), np.full((rows, len(GROUPS)), NEVER_H), np.full(rows, NEVER_H),
            np.zeros(rows, dtype=np.int64), np.full((rows, labels), -1, dtype=np.int64),
        )  # fmt: skip


class _Line:
    """The moments of keys, sorted, to look up many at once."""

    def __init__(self, keys: Whole, times: Numbers) -> None:
        kept = np.flatnonzero(np.isfinite(times) & (keys >= 0))
        self.order = kept[np.lexsort((times[kept], keys[kept]))]
        self.keys, self.times = keys[self.order], times[self.order]
        self._line = self.keys * _SPAN + self.times

    def last(self, keys: Whole, times: Numbers) -> tuple[Whole, Flags]:
        """Returns for each key the place of its last moment up to the time, and whether there is one."""
        at = np.searchsorted(self._line, keys * _SPAN + times, side="right") - 1
        found = (at >= 0) & (keys >= 0)
        found[found] = self.keys[at[found]] == keys[found]
        return at, found

    def since(self, keys: Whole, times: Numbers) -> Numbers:
        """Returns the hours since the last moment of each key, inf without one."""
        at, found = self.last(keys, times)
        hours = np.full(len(keys), NEVER_H)
        hours[found] = times[found] - self.times[at[found]]
        return hours

    def count(self, keys: Whole, times: Numbers, within: float) -> Whole:
        """Returns how many moments each key has in the hours before the time."""
        if not len(self._line):
            return np.zeros(len(keys), dtype=np.int64)
        upto, start = (
            np.searchsorted(self._line, keys * _SPAN + np.maximum(each, 0.0), side="right")
            for each in (times, times - within)
        )
        return np.where(keys >= 0, upto - start, 0)


class History:
    """Units and their faults, indexed to look up what was known at a time."""

    def __init__(self, units: Units, faults: Faults) -> None:
        self.units, self.faults = units, faults
        self._any = _Line(faults.part, faults.back)
        self._same = [
            _Line(np.where(faults.group == group, faults.part, -1), faults.back) for group in range(len(GROUPS))
        ]
        self._place = _Line(faults.place, faults.back)
        self._rack = _Line(faults.rack, faults.at)
        self._own = _Line(np.where(faults.rack >= 0, faults.place, -1), faults.at)
        self._down = _Line(faults.unit, faults.at)
        backs = np.maximum.accumulate(self._down.keys * _SPAN + np.minimum(faults.back[self._down.order], _SPAN - 1.0))
        self._backs = backs - self._down.keys * _SPAN

    def clocks(self, unit: Whole, at: Numbers) -> Clocks:
        """Returns what was known of each unit at its time."""
        part, place, rack = self.units.part[unit], self.units.place[unit], self.units.rack[unit]
        same = np.stack([line.since(part, at) for line in self._same], axis=1)
        last, swapped = self._place.last(place, at)
        other = np.full(len(unit), NEVER_H)
        if len(self._place.order):
            swapped[swapped] = self.faults.part[self._place.order[last[swapped]]] != part[swapped]
            other[swapped] = at[swapped] - self._place.times[last[swapped]]
        neighbours = self._rack.count(rack, at, NEIGHBOURS_H)
        neighbours -= np.where(rack >= 0, self._own.count(place, at, NEIGHBOURS_H), 0)
        return Clocks(
            self._any.since(part, at), same, other, np.clip(neighbours, 0, NEIGHBOURS_MAX), self.units.labels[unit]
        )  # fmt: skip

    def down(self, unit: Whole, at: Numbers) -> Flags:
        """Returns which units were out of service at their time, after a fault."""
        place, found = self._down.last(unit, at)
        found[found] = self._backs[place[found]] > at[found]
        return found


def segments(history: History, edges_h: Sequence[float], cuts: Numbers) -> tuple[Whole, Numbers, Numbers]:
    """Returns the units' time in service, cut where a clock passes one of the edges, and at ``cuts`` (hours).

    Three arrays of one length: unit, begin and end of each piece, without the hours that a unit was out of service.
    """
    units, faults = history.units, history.faults
    owners, moments = [np.arange(len(units))] * 2, [units.start, units.end]
    for keys, of in ((faults.part, units.part), (faults.place, units.place)):
        unit, fault = _matches(keys, of)
        marks = np.concatenate(
            [faults.at[fault][:, None], faults.back[fault][:, None] + np.array([0.0, *edges_h])], axis=1
        )
        owners.append(np.repeat(unit, marks.shape[1]))
        moments.append(marks.ravel())
    owners.append(np.repeat(np.arange(len(units)), len(cuts)))
    moments.append(np.tile(cuts, len(units)))
    owner, moment = np.concatenate(owners), np.concatenate(moments)
    inside = (moment >= units.start[owner]) & (moment <= units.end[owner])
    owner, moment = owner[inside], moment[inside]
    order = np.lexsort((moment, owner))
    owner, moment = owner[order], moment[order]
    piece = (owner[1:] == owner[:-1]) & (moment[1:] > moment[:-1])
    unit, begin, end = owner[1:][piece], moment[:-1][piece], moment[1:][piece]
    up = ~history.down(unit, (begin + end) / 2.0)
    return unit[up], begin[up], end[up]


def _matches(keys: Whole, of: Whole) -> tuple[Whole, Whole]:
    """Returns the pairs (unit, fault) that have a key in common."""
    order = np.argsort(of, kind="stable")
    first = np.searchsorted(of[order], keys, side="left")
    count = np.searchsorted(of[order], keys, side="right") - first
    fault = np.repeat(np.arange(len(keys)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return order[first[fault] + within], fault


EPISODE_H = 24.0
"""A fault within this time of a return belongs to the fault before, which was never repaired."""


def episodes(faults: Faults) -> Faults:
    """Returns the faults, with those of a unit that overlap or follow a return within ``EPISODE_H`` merged into the
    first, ``back`` when the last is.
    """
    order = np.lexsort((faults.at, faults.unit))
    kept: list[int] = []
    back = faults.back.copy()
    for each in order.tolist():
        first = kept[-1] if kept else -1
        if first >= 0 and faults.unit[first] == faults.unit[each] and faults.at[each] < back[first] + EPISODE_H:
            back[first] = max(back[first], faults.back[each])
        else:
            kept.append(each)
    return dataclasses.replace(faults, back=back).pick(np.array(sorted(kept), dtype=np.int64))
