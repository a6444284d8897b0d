"""History: a device's readings at its earlier visits, relative to its siblings on the same day.

Relative to siblings, effects on the whole node that day (inlet, load, driver) cancel. The node's own level is kept too,
so that a node whose devices all slow down together is found.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.fleet.peers.distances import distances
from muster_criteria.fleet.peers.snapshot import Snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.keyed import (
    SERIES,
    Codes,
    Keyed,
    Numbers,
    Places,
    SeriesKey,
    by_group,
    keyed,
    mapping,
    series_of,
)
from muster_criteria.fleet.series.timeline import VISITS_MAX, Matrix, Timeline, row_medians, timeline

OWNER = ("node", "device", *SERIES)
NODE_LEVEL = ""
"""The ``device`` of rows about the node's own level."""
VISIT_COLUMNS = tuple(f"v{number}" for number in range(VISITS_MAX))


@dataclasses.dataclass(frozen=True, eq=False)
class Past:
    """The past of each reading's device or node: the median over earlier visits (NaN: unknown), and their number."""

    median: Numbers
    visits: Codes


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """Earlier visits. ``series``: a row per node × device × series (columns ``OWNER``), then ``VISIT_COLUMNS``:
    relative readings, the latest last.
    """

    series: pd.DataFrame

    def of(self, node: str) -> History:
        """The history of one node alone."""
        return History(self.series[self.series["node"] == node].reset_index(drop=True))

    def of_nodes(self, nodes: Sequence[str]) -> History:
        """The history of these nodes alone, without other nodes' names; the rows of a node stay in order."""
        names = self._categories["node"].categories
        wanted = np.unique(names.get_indexer(list(nodes)))
        wanted = wanted[wanted >= 0]
        order, starts = self._by_node
        kept = np.concatenate([order[:0], *(order[starts[at] : starts[at + 1]] for at in wanted.tolist())])
        own = np.repeat(np.arange(len(wanted)), starts[wanted + 1] - starts[wanted])
        return History(self.series.take(kept).assign(node=pd.Categorical.from_codes(own, names[wanted])))

    @functools.cached_property
    def _by_node(self) -> tuple[npt.NDArray[np.int32], Codes]:
        """The positions of the rows by node, in four bytes each; and where those of each node start."""
        node = self._categories["node"]
        order, starts = by_group(node.codes.to_numpy(), len(node.categories))
        return order.astype(np.int32), starts

    @functools.cached_property
    def values(self) -> Matrix:
        """The visits as a matrix, a row for each row of ``series``."""
        return self.series[list(VISIT_COLUMNS)].to_numpy(dtype=np.float32)

    @functools.cached_property
    def _median(self) -> Numbers:
        return row_medians(self.values)

    @functools.cached_property
    def _visits(self) -> Codes:
        return np.asarray(np.sum(np.isfinite(self.values), axis=1), dtype=np.int64)

    @functools.cached_property
    def _numbers(self) -> tuple[dict[str, int], dict[str, int], dict[SeriesKey, int]]:
        nodes, devices = (self._categories[name].categories.astype(str).tolist() for name in ("node", "device"))
        return (
            {name: at for at, name in enumerate(nodes)},
            {name: at for at, name in enumerate(devices)},
            {key: at for at, key in enumerate(self._which[1])},
        )

    @functools.cached_property
    def _categories(self) -> dict[str, Any]:
        return {name: self.series[name].astype("category").cat for name in OWNER}

    @functools.cached_property
    def _which(self) -> tuple[Codes, list[SeriesKey]]:
        return series_of([self._categories[name] for name in SERIES], len(self.series))

    @functools.cached_property
    def _places(self) -> Places:
        """Where the row of each (node, device, series) stands."""
        nodes, devices, series = self._numbers
        node, device = (self._categories[name].codes.to_numpy().astype(np.int64) for name in ("node", "device"))
        return Places.of(
            (node * len(devices) + device) * len(series) + self._which[0], len(nodes) * len(devices) * len(series)
        )

    def past(self, readings: Keyed, *, node_level: bool = False) -> Past:
        """The past of each reading's device (or of its node's own level)."""
        if not len(self.series):
            none, unknown = np.zeros(len(readings), dtype=np.int64), np.full(len(readings), np.nan)
            return Past(unknown, none)
        nodes, devices, series = self._numbers
        node = mapping(readings.nodes, nodes)[readings.node]
        if node_level:
            device = np.full(len(readings), devices.get(NODE_LEVEL, -1), dtype=np.int64)
        else:
            device = mapping(readings.devices, devices)[readings.device]
        which = mapping([each.key for each in readings.catalogue], series)[readings.series]
        known = (node >= 0) & (device >= 0) & (which >= 0)
        row = self._places.find(np.where(known, (node * len(devices) + device) * len(series) + which, -1))
        hit = row >= 0
        return Past(
            median=np.where(hit, self._median[row], np.nan),
            visits=np.where(hit, self._visits[row], 0),
        )


def build_history(readings: pd.DataFrame, snapshot: Snapshot, comparisons: Sequence[Comparison]) -> History:
    """The history from these earlier readings: all visits before the one to be judged; repeats count once."""
    fleet = keyed(readings, comparisons, by_day=True)
    measured = distances(fleet, snapshot.lookup, snapshot.slope_of)
    of = measured.readings
    devices, levels = timeline(of.owner, of.day, measured.relative), timeline(of.of_node, of.day, measured.own_level)
    return History(
        pd.concat(
            [_frame(of, devices, of_node=False), _frame(of, levels, of_node=True)],
            ignore_index=True,
        )
    )


def _frame(readings: Keyed, lines: Timeline, *, of_node: bool) -> pd.DataFrame:
    owner, series = np.divmod(lines.owners, max(len(readings.catalogue), 1))
    node, device = (owner, None) if of_node else np.divmod(owner, max(len(readings.devices), 1))
    columns: dict[str, object] = {"node": _named(node, readings.nodes)}
    # The same names in both frames: joined, they remain categories, of a byte or two a row.
    at = np.full(len(node), len(readings.devices)) if device is None else device
    columns["device"] = _named(at, [*readings.devices, NODE_LEVEL])
    for position, name in enumerate(SERIES):
        names = pd.Series([each.key[position] for each in readings.catalogue], dtype=object).astype("category")
        columns[name] = names.array.take(series)
    columns |= {name: lines.values[:, number] for number, name in enumerate(VISIT_COLUMNS)}
    return pd.DataFrame(columns)


def _named(codes: Codes, names: Sequence[str]) -> Any:
    return pd.Series(names, dtype="str").astype("category").cat.set_categories(list(names)).array.take(codes)
