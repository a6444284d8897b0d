"""Cells: the usual value of one series in one slot of one peer group, and where to look if there are too few peers."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.fleet.budget import PEERS_MIN
from muster_criteria.fleet.peers.bands import ANY_SLOT, COLUMNS, HIGH, LOW, SEVERAL, sku_wide
from muster_criteria.fleet.series.keyed import (
    Codes,
    Keyed,
    Numbers,
    Places,
    SeriesKey,
    mapping,
    medians,
    numbered,
    quantiles,
)
from muster_criteria.fleet.series.readings import stack_of


class Cells:
    """A table of cells, and the look-up of many readings at once."""

    def __init__(self, frame: pd.DataFrame) -> None:
        """``frame``: columns ``COLUMNS``, each (series, group, slot) once."""
        self.frame = frame

    @functools.cached_property
    def _series(self) -> dict[SeriesKey, int]:
        keys = zip(*(self.frame[name] for name in COLUMNS[:4]), strict=True)
        return {key: number for number, key in enumerate(dict.fromkeys(keys))}

    @functools.cached_property
    def _groups(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(dict.fromkeys(self.frame["group"]))}

    @functools.cached_property
    def _stacks(self) -> dict[str, str]:
        return dict(zip(self.frame["group"], self.frame["stack"], strict=True))

    @functools.cached_property
    def _slots(self) -> int:
        return int(self.frame["slot"].max()) + 3 if len(self.frame) else 3

    @functools.cached_property
    def _places(self) -> Places:
        """Where the row of each (series, group, slot) stands."""
        keys = zip(*(self.frame[name] for name in COLUMNS[:4]), strict=True)
        series = np.array([self._series[key] for key in keys], dtype=np.int64)
        group = np.array([self._groups[name] for name in self.frame["group"]], dtype=np.int64)
        size = len(self._series) * len(self._groups) * self._slots
        return Places.of(self._key(series, group, self.frame["slot"].to_numpy(dtype=np.int64)), size)

    def _key(self, series: Codes, group: Codes, slot: Codes) -> Codes:
        return (series * len(self._groups) + group) * self._slots + slot + 2

    def usual(self, readings: Keyed) -> tuple[Numbers, Codes, npt.NDArray[np.bool_]]:
        """(median that each reading is compared with, number of its peers, whether most of these run another stack);
        NaN, 0 and False without peers.

        The same slot of the peer group; else the same slot of the SKU; else any slot of the SKU.
        """
        series = mapping([each.key for each in readings.catalogue], self._series)
        group = mapping(readings.groups, self._groups)
        sku = mapping([sku_wide(name) for name in readings.skus], self._groups)
        slots = int(readings.slot.max(initial=0)) + 3
        combined = readings.series * len(readings.groups) + readings.group
        combined = (combined * len(readings.skus) + readings.sku) * slots + readings.slot + 2
        size = max(len(readings.catalogue) * len(readings.groups) * len(readings.skus), 1) * slots
        which, distinct = numbered(combined, size)
        rest, slot = np.divmod(distinct, slots)
        rest, sku_code = np.divmod(rest, max(len(readings.skus), 1))
        series_code, group_code = np.divmod(rest, max(len(readings.groups), 1))
        median, count = np.full(len(distinct), np.nan), np.zeros(len(distinct), dtype=np.int64)
        places = (
            (group[group_code], slot - 2),
            (sku[sku_code], slot - 2),
            (sku[sku_code], np.full_like(slot, ANY_SLOT)),
        )
        self._fill(series[series_code], *places[0], median, count)
        alone = np.isnan(median)
        for where, at in places[1:]:
            self._fill(series[series_code], where, at, median, count)
        foreign = alone & ~np.isnan(median)
        if foreign.any():
            stacks = [self._stacks.get(sku_wide(name)) for name in readings.skus]
            other = np.array([[stack_of(name) != stack for stack in stacks] for name in readings.groups])
            foreign &= other[group_code, sku_code]
        return median[which], count[which], foreign[which]

    def _fill(self, series: Codes, group: Codes, slot: Codes, median: Numbers, count: Codes) -> None:
        known = (series >= 0) & (group >= 0) & (slot < self._slots - 2)
        row = self._places.find(np.where(known, self._key(series, group, slot), -1))
        hit = np.isnan(median) & (row >= 0)
        median[hit] = self.frame["median"].to_numpy(dtype=np.float64)[row[hit]]
        count[hit] = self.frame["count"].to_numpy(dtype=np.int64)[row[hit]]


def cells_of(readings: Keyed) -> pd.DataFrame:
    """The cells that these readings make, one reading per device; those of fewer than ``PEERS_MIN`` are left out.

    A node is not its own peer: a cell over all slots needs ``PEERS_MIN`` readings from other nodes than the one with
    most of them, and more than that node has, or the median would lie between the two.
    """
    catalogue, slots = readings.catalogue, int(readings.slot.max(initial=0)) + 3
    any_slot: Codes = np.full(len(readings), ANY_SLOT)
    parts = []
    groups = (
        (readings.group, readings.groups, readings.slot),
        (readings.sku, [sku_wide(name) for name in readings.skus], readings.slot),
        (readings.sku, [sku_wide(name) for name in readings.skus], any_slot),
    )
    stacks = _stacks(readings)
    for code, names, slot in groups:
        number, distinct = pd.factorize((readings.series * max(len(names), 1) + code) * slots + slot + 2)
        median, count = medians(readings.value, number.astype(np.int64), len(distinct))
        own = _most_of_one_node(number, readings.node, len(distinct)) if slot is any_slot else 0
        enough = (count - own >= PEERS_MIN) & (count > 2 * own) & (median > 0.0)
        rest, at = np.divmod(distinct[enough], slots)
        series, group = np.divmod(rest, max(len(names), 1))
        columns: dict[str, object] = {
            name: [catalogue[each].key[position] for each in series] for position, name in enumerate(COLUMNS[:4])
        }
        columns |= {"group": [names[each] for each in group], "slot": at - 2}
        number_of = np.flatnonzero(enough)
        low, high = quantiles(readings.value, number.astype(np.int64), number_of, (LOW, HIGH))
        columns |= {"median": median[enough], "low": low, "high": high, "count": count[enough]}
        columns["stack"] = [stacks.get(names[each], "") for each in group]
        parts.append(pd.DataFrame(columns, columns=list(COLUMNS)))
    frame = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return frame.sort_values(list(COLUMNS[:6]), ignore_index=True, kind="stable")


def _stacks(readings: Keyed) -> dict[str, str]:
    """By the name of a SKU's own cells, the stack that more than half of its readings are of."""
    code, names = pd.factorize(np.array([stack_of(name) for name in readings.groups], dtype=object))
    counts = np.zeros((len(readings.skus), len(names)), dtype=np.int64)
    if len(readings):
        np.add.at(counts, (readings.sku, code[readings.group]), 1)
    return {
        sku_wide(sku): str(names[of.argmax()]) if 2 * of.max(initial=0) > of.sum() else SEVERAL
        for sku, of in zip(readings.skus, counts, strict=True)
    }


def _most_of_one_node(cell: Codes, node: Codes, cells: int) -> Codes:
    """Returns for each cell the largest number of readings from one node."""
    nodes = int(node.max(initial=0)) + 1
    pairs, of_pair = np.unique(cell * nodes + node, return_counts=True)
    most: Codes = np.zeros(cells, dtype=np.int64)
    np.maximum.at(most, pairs // nodes, of_pair)
    return most
