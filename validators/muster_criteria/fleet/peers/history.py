"""History: what a device was like at its earlier visits, relative to its siblings on the same day.

Relative to siblings, what the whole node felt that day (inlet, load, driver) cancels. The node's own level is kept
with it, so that a node whose devices all slow down together is seen too.
"""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from muster_criteria.fleet.budget import STANDARD
from muster_criteria.fleet.peers.distances import Distances, distances
from muster_criteria.fleet.peers.snapshot import Snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.keyed import Codes, Keyed, Numbers, SeriesKey, keyed, mapping, numbered
from muster_criteria.fleet.series.timeline import VISITS_MAX, Matrix, Timeline, row_medians, timeline

OWNER = ("node", "device", "kind", "metric", "labels", "unit")
NODE_LEVEL = ""
"""The ``device`` of rows about the node's own level."""
FIRST_VISITS = 3
"""Number of the oldest kept visits that are the reference of a CUSUM."""
VISIT_COLUMNS = tuple(f"v{number}" for number in range(VISITS_MAX))


@dataclasses.dataclass(frozen=True, eq=False)
class Past:
    """The past of some readings' owners: the median over earlier visits, that over the first of them, their
    number, and the row of each owner in ``History.values`` (−1: unknown).
    """

    median: Numbers
    first: Numbers
    visits: Codes
    row: Codes


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
        """The history of these nodes alone."""
        node = self._categories["node"]
        kept = np.isin(node.codes.to_numpy(), np.flatnonzero(node.categories.isin(nodes)))
        return History(self.series[kept])

    def to_bytes(self) -> bytes:
        """Parquet."""
        buffer = io.BytesIO()
        self.series.to_parquet(buffer, index=False)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, raw: bytes) -> History:
        """Returns the value that ``to_bytes`` wrote. Raises ValueError on anything else."""
        try:
            series = pd.read_parquet(io.BytesIO(raw))
        except Exception as error:  # pyarrow raises several kinds
            raise ValueError(f"the history cannot be read: {error}") from None
        if list(series.columns) != [*OWNER, *VISIT_COLUMNS]:
            raise ValueError("the history cannot be read: its columns are others")
        return cls(series)

    @functools.cached_property
    def values(self) -> Matrix:
        """The visits as a matrix, a row for each row of ``series``."""
        return self.series[list(VISIT_COLUMNS)].to_numpy(dtype=np.float32)

    @functools.cached_property
    def _median(self) -> Numbers:
        return row_medians(self.values)

    @functools.cached_property
    def _first(self) -> Numbers:
        return row_medians(self.values, FIRST_VISITS)

    @functools.cached_property
    def _visits(self) -> Codes:
        return np.asarray(np.sum(np.isfinite(self.values), axis=1), dtype=np.int64)

    @functools.cached_property
    def _numbers(self) -> tuple[dict[str, int], dict[str, int], dict[SeriesKey, int]]:
        nodes, devices = (self._categories[name].categories.astype(str).tolist() for name in ("node", "device"))
        parts = [self._categories[name].categories.astype(str).tolist() for name in OWNER[2:]]
        keys = np.unravel_index(self._which[1], [max(len(part), 1) for part in parts])
        named = zip(*([part[at] for at in of.tolist()] for part, of in zip(parts, keys, strict=True)), strict=True)
        return (
            {name: at for at, name in enumerate(nodes)},
            {name: at for at, name in enumerate(devices)},
            {(kind, metric, labels, unit): at for at, (kind, metric, labels, unit) in enumerate(named)},
        )

    @functools.cached_property
    def _categories(self) -> dict[str, Any]:
        return {name: self.series[name].astype("category").cat for name in OWNER}

    @functools.cached_property
    def _which(self) -> tuple[Codes, Codes]:
        """The number of each row's series, and what each number stands for: a combination of categories."""
        combined = np.zeros(len(self.series), dtype=np.int64)
        size = 1
        for name in OWNER[2:]:
            of = self._categories[name]
            size *= max(len(of.categories), 1)
            combined = combined * max(len(of.categories), 1) + of.codes.to_numpy()
        return numbered(combined, size)

    @functools.cached_property
    def _sorted(self) -> tuple[Codes, Codes]:
        _, devices, series = self._numbers
        node, device = (self._categories[name].codes.to_numpy().astype(np.int64) for name in ("node", "device"))
        key = (node * max(len(devices), 1) + device) * max(len(series), 1) + self._which[0]
        order = np.argsort(key, kind="stable")
        return key[order], order

    def past(self, readings: Keyed, *, node_level: bool = False) -> Past:
        """The past of each reading's device (or of its node's own level)."""
        if not len(self.series):
            none, unknown = np.zeros(len(readings), dtype=np.int64), np.full(len(readings), np.nan)
            return Past(unknown, unknown, none, none - 1)
        nodes, devices, series = self._numbers
        node = mapping(readings.nodes, nodes)[readings.node]
        if node_level:
            device = np.full(len(readings), devices.get(NODE_LEVEL, -1), dtype=np.int64)
        else:
            device = mapping(readings.devices, devices)[readings.device]
        which = mapping([each.key for each in readings.catalogue], series)[readings.series]
        wanted = (node * len(devices) + device) * len(series) + which
        keys, order = self._sorted
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hit = (keys[at] == wanted) & (node >= 0) & (device >= 0) & (which >= 0)
        row = np.where(hit, order[at], -1)
        return Past(
            median=np.where(hit, self._median[row], np.nan),
            first=np.where(hit, self._first[row], np.nan),
            visits=np.where(hit, self._visits[row], 0),
            row=row,
        )


def build_history(readings: pd.DataFrame, snapshot: Snapshot, comparisons: Sequence[Comparison]) -> History:
    """The history that these earlier readings make: all visits before the one to be judged; repeats count once."""
    fleet = keyed(readings, comparisons, by_day=True)
    measured = distances(fleet, snapshot.lookup, snapshot.slope_of, STANDARD.siblings_min)
    devices, levels = device_timeline(measured), level_timeline(measured)
    return History(
        pd.concat(
            [_frame(measured.readings, devices, of_node=False), _frame(measured.readings, levels, of_node=True)],
            ignore_index=True,
        )
    )


def device_timeline(measured: Distances) -> Timeline:
    """Timelines of each (node, device, series): relative to siblings."""
    of = measured.readings
    owner = (of.node * len(of.devices) + of.device) * len(of.catalogue) + of.series
    return timeline(owner, of.day, measured.relative)


def level_timeline(measured: Distances) -> Timeline:
    """Timelines of each (node, series): the node's own level."""
    of = measured.readings
    return timeline(of.node * len(of.catalogue) + of.series, of.day, measured.level)


def _frame(readings: Keyed, lines: Timeline, *, of_node: bool) -> pd.DataFrame:
    owner, series = np.divmod(lines.owners, max(len(readings.catalogue), 1))
    node, device = (owner, None) if of_node else np.divmod(owner, max(len(readings.devices), 1))
    columns: dict[str, object] = {"node": _named(node, readings.nodes)}
    if device is None:
        columns["device"] = _named(np.zeros(len(node), dtype=np.int64), [NODE_LEVEL])
    else:
        columns["device"] = _named(device, readings.devices)
    for position, name in enumerate(OWNER[2:]):
        names = pd.Series([each.key[position] for each in readings.catalogue], dtype=object).astype("category")
        columns[name] = names.array.take(series)
    columns |= {name: lines.values[:, number] for number, name in enumerate(VISIT_COLUMNS)}
    return pd.DataFrame(columns)


def _named(codes: Codes, names: Sequence[str]) -> Any:
    return pd.Series(names, dtype="str").astype("category").cat.set_categories(list(names)).array.take(codes)
