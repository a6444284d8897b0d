"""History: what a device was like at its earlier visits, relative to its siblings on the same day.

Relative to siblings, what the whole node felt that day (inlet, load, driver) cancels. The node's own level is kept
beside it, so that a node whose devices all slow down together is seen too.
"""

from __future__ import annotations

import dataclasses

import pandas as pd

from muster_criteria.fleet.snapshot import Snapshot

VISITS_MAX = 8
"""Earlier visits that are kept of each series: enough for a median and a CUSUM, and a few hundred bytes a device."""


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """Earlier visits; ``series``: a row per node × device × (metric, labels, unit), columns in time order."""

    series: pd.DataFrame

    def of(self, node: str) -> History:
        """The history of one node alone."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """Parquet."""
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, raw: bytes) -> History:
        """What ``to_bytes`` wrote. Raises ValueError on anything else."""
        raise NotImplementedError


def build_history(readings: pd.DataFrame, snapshot: Snapshot) -> History:
    """The history that these earlier readings make (all visits before the one to be judged; repeats count once)."""
    raise NotImplementedError
