"""A frozen snapshot of the peers: what is usual for each metric, slot and peer group, and how far healthy parts stray.

Built from the latest value of each device; the same readings and date always give the same version. A verdict cites the
version, and can be replayed with it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Sequence

import pandas as pd

from muster_criteria.fleet.comparisons import Comparison

SCHEMA = "muster.snapshot/1"


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshot:
    """What the peers are like.

    ``version``: digest of the content and its date. ``cells``: a row per (metric, labels, unit, kind, group, slot), with
    SKU-wide ones for peer groups of fewer than eight: ``median`` in unit, ``scale`` (1.4826 × MAD, as a share of the
    median), ``count``. ``tails``: for each rule, metric and number of readings, how far the worst share p of healthy
    devices strays, in scales. ``series``, ``indices``: how many single series and family indices a node has.
    """

    version: str
    made_at: datetime.datetime
    cells: pd.DataFrame
    tails: pd.DataFrame
    series: int
    indices: int
    nodes: int

    def to_bytes(self) -> bytes:
        """Parquet, the same bytes for the same snapshot."""
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, raw: bytes) -> Snapshot:
        """What ``to_bytes`` wrote. Raises ValueError, in one sentence, on anything else."""
        raise NotImplementedError


def build_snapshot(
    readings: pd.DataFrame,
    at: datetime.datetime,
    comparisons: Sequence[Comparison],
    *,
    exclude: Collection[str] = frozenset(),
) -> Snapshot:
    """The snapshot of these readings (see ``readings.COLUMNS``) as of ``at`` (with zone).

    Give the last few visits of each device where there are any: medians come from the latest value of each device;
    from several visits it is learned how far a device strays from itself, without which drift and repeats only warn.
    Readings after ``at`` and those of nodes in ``exclude`` (open findings, quarantined) are left out.
    """
    raise NotImplementedError
