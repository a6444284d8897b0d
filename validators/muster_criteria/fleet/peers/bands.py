"""The usual range among the peers of a SKU, over all slots, read from a snapshot's bytes without pandas, for pages."""

from __future__ import annotations

import dataclasses
import gzip
import json

from muster_criteria.labels import Key, labels_of

COLUMNS = ("kind", "metric", "labels", "unit", "group", "slot", "median", "low", "high", "count", "stack")
"""A cell's columns in a snapshot: ``low`` and ``high`` are the quantiles ``LOW`` and ``HIGH``. ``stack``, of a cell
over all peer groups of a SKU: what more than half of the SKU's readings are of, or else ``SEVERAL``."""
LOW, HIGH = 0.05, 0.95
SEVERAL = "several"
ANY_SLOT = -2
"""The ``slot`` of a cell over all slots."""


@dataclasses.dataclass(frozen=True)
class Band:
    """The 5th percentile, median and 95th percentile of ``count`` devices, in the metric's unit."""

    low: float
    median: float
    high: float
    count: int


def sku_wide(sku: str) -> str:
    """The ``group`` of a cell over all peer groups of a SKU."""
    return f"sku:{sku}"


def bands_of(raw: bytes, sku: str) -> dict[Key, Band]:
    """The bands of each series of the SKU. ``raw``: of ``Snapshot.to_bytes``. Raises ValueError on anything else."""
    try:
        cells = json.loads(gzip.decompress(raw))["cells"]
        rows = zip(*(cells[name] for name in COLUMNS), strict=True)
        return {
            Key(kind, metric, labels_of(labels), unit): Band(low, median, high, count)
            for kind, metric, labels, unit, group, slot, median, low, high, count, _ in rows
            if slot == ANY_SLOT and group == sku_wide(sku)
        }
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the snapshot cannot be read: {error}") from None
