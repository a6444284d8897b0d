"""A frozen snapshot of the peers: usual values by metric, slot and peer group, and how far healthy parts differ.

Built from the latest value of each device; the same readings and date always give the same version. A verdict cites the
version, and can be replayed with it.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import gzip
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from muster_criteria.fleet.peers import cells as cells_module
from muster_criteria.fleet.peers import explained
from muster_criteria.fleet.peers.cells import Cells
from muster_criteria.fleet.peers.explained import Slopes
from muster_criteria.fleet.peers.outliers import SCALES, TAILS, Estimated, estimate
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.keyed import Numbers
from muster_criteria.text import one_line

SCHEMA = "muster.snapshot/9"
_TABLES = {"cells": cells_module.COLUMNS, "scales": SCALES, "tails": TAILS, "slopes": explained.COLUMNS}


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshot(Estimated):
    """Reference figures of the peers.

    ``version``: digest of the content and its date. ``work``: what the probes had to do (``work.work_of``).
    """

    version: str
    made_at: datetime.datetime
    work: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def lookup(self) -> Cells:
        """The cells, ready for looking up many readings."""
        return Cells(self.cells)

    @functools.cached_property
    def slope_of(self) -> Slopes:
        """The slopes as a mapping."""
        return explained.slopes_of(self.slopes)

    @functools.cached_property
    def scale_of(self) -> dict[tuple[str, ...], tuple[float, int]]:
        """The scales and their sizes as a mapping, by rule, SKU and series."""
        rows = zip(*(self.scales[name].tolist() for name in SCALES), strict=True)
        return {tuple(row[:-2]): (float(row[-2]), int(row[-1])) for row in rows}

    @functools.cached_property
    def tail_of(self) -> dict[tuple[str, int, str, str, str], Numbers]:
        """The tails as a mapping, by rule, repeats, SKU, kind and metric."""
        keys = zip(*(self.tails[name].tolist() for name in TAILS[:5]), strict=True)
        tables = self.tails[list(TAILS[6:])].to_numpy(dtype=np.float64)
        return {(str(r), int(n), str(s), str(k), str(m)): tables[at] for at, (r, n, s, k, m) in enumerate(keys)}

    def without(self, metrics: Collection[str]) -> Snapshot:
        """The same snapshot (its version too) without the usual values of these metrics."""
        kept = ~self.cells["metric"].isin(list(metrics))
        return self if kept.all() else dataclasses.replace(self, cells=self.cells[kept].reset_index(drop=True))

    def equals(self, other: Snapshot) -> bool:
        """Whether both have the same content, whenever they were made."""
        return _digest(self) == _digest(dataclasses.replace(other, made_at=self.made_at))

    def to_bytes(self) -> bytes:
        """Compressed JSON, the same bytes for the same snapshot."""
        return gzip.compress(json.dumps(_content(self) | {"version": self.version}).encode(), mtime=0)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Snapshot:
        """Returns the snapshot that ``to_bytes`` wrote. Raises ValueError, in one sentence, on anything else."""
        try:
            content = json.loads(gzip.decompress(raw))
            version = content.pop("version")
            if content["schema"] != SCHEMA:
                raise ValueError(f"its schema is {content['schema']}, not {SCHEMA}")
            tables = {name: pd.DataFrame(content[name], columns=list(columns)) for name, columns in _TABLES.items()}
            made = cls(
                version="",
                made_at=datetime.datetime.fromisoformat(content["made_at"]),
                low=float(content["low"]),
                varied=float(content["varied"]),
                nodes=int(content["nodes"]),
                work={str(probe): str(digest) for probe, digest in content["work"].items()},
                **tables,
            )
        except Exception as error:  # zlib has errors of its own, and a broken number or nesting others
            raise ValueError(one_line(f"the snapshot cannot be read: {error}")[:300]) from None
        if _digest(made) != version:
            raise ValueError(f"the snapshot cannot be read: its content is not that of version {version}")
        return dataclasses.replace(made, version=version)


def _content(snapshot: Snapshot) -> dict[str, Any]:
    tables = {
        name: {column: getattr(snapshot, name)[column].tolist() for column in columns}
        for name, columns in _TABLES.items()
    }
    counts = {name: getattr(snapshot, name) for name in ("low", "varied", "nodes")}
    made = {"made_at": snapshot.made_at.isoformat(), "work": dict(snapshot.work)}
    return {"schema": SCHEMA, **made, **tables, **counts}


def _digest(snapshot: Snapshot) -> str:
    return hashlib.sha256(json.dumps(_content(snapshot), sort_keys=True).encode()).hexdigest()[:16]


def build_snapshot(
    readings: pd.DataFrame,
    at: datetime.datetime,
    comparisons: Sequence[Comparison],
    *,
    exclude: Collection[str] = frozenset(),
    work: Mapping[str, str] | None = None,
) -> Snapshot:
    """The snapshot of these readings (see ``readings.COLUMNS``) as of ``at`` (with zone).

    Pass the last few visits of each device if there are any: medians come from the latest value of each device;
    distances of a device from its own past need several visits, and without them drift and repeats only warn. Readings
    after ``at`` and those of nodes in ``exclude`` (open findings, quarantined) are left out. ``work``: what the probes
    had to do for the readings.
    """
    made_at = at.astimezone(datetime.UTC)
    kept = (readings["at"] <= made_at.timestamp() / 86400.0) & ~readings["node"].isin(list(exclude))
    estimated = estimate(readings[kept].reset_index(drop=True), comparisons)
    snapshot = Snapshot(**vars(estimated), version="", made_at=made_at, work=work or {})
    return dataclasses.replace(snapshot, version=_digest(snapshot))
