"""Readings: the long frame in which a fleet is compared, one row per node × device × (metric, labels) and visit.

Repeated names are categories, so that the five million rows of 10,000 eight-GPU nodes take tens of bytes each.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from muster_criteria.devices import kind_of
from muster_criteria.labels import labels_text

NAMES = ("node", "device", "kind", "group", "sku", "metric", "labels", "unit", "run")
"""Columns that are names, kept as categories."""
COLUMNS = ("node", "device", "kind", "slot", "group", "sku", "metric", "labels", "unit", "value", "at", "run")
"""``slot``: the device's position, −1 where it has none. ``value``: in ``unit``. ``at``: day and fraction since 1970,
UTC. ``labels``: "dtype=bf16" (see ``labels_text``). ``group``: key of the peer group (see ``group_of``). ``run``: which
job measured it, one stage of one visit; the same thing measured by two runs of a visit are repeats."""

STACK = ("driver", "cuda", "torch", "nccl")
"""The parts of an environment that are its driver and libraries."""
GROUPED_BY = ("vbios", *STACK)
"""The parts of an environment that make a peer group, with SKU and cooling zone: firmware of the GPUs, driver,
libraries. Of kernel, BIOS and NIC firmware a fleet may have many versions at once: its groups would be small."""

DAY_S = 86400.0


def group_of(sku: str, environment: Mapping[str, str | None], zone: str = "") -> str:
    """Key of the peer group: SKU, firmware, driver, libraries, cooling zone. What is not known is left empty."""
    parts = [f"{name}={environment.get(name) or ''}" for name in GROUPED_BY]
    return "|".join([sku, *parts, f"zone={zone}"])


def stack_of(group: str) -> str:
    """Firmware, driver and libraries of a peer group's key, without SKU and cooling zone."""
    return ", ".join(part for part in group.split("|")[1:] if not part.startswith("zone=") and not part.endswith("="))


def day_of(at: datetime.datetime | float) -> float:
    """Days since 1970 of a time (with zone) or of epoch seconds."""
    return (at.timestamp() if isinstance(at, datetime.datetime) else float(at)) / DAY_S


def slot_of(device: str) -> int:
    """3 of "gpu3"; −1 of a device without a number ("node", "nic:mlx5_0")."""
    number = re.match(r"\d+", device[len(kind_of(device)) :])
    return int(number.group()) if number else -1


def readings_of(
    rows: Iterable[Any],
    *,
    node: str,
    at: datetime.datetime | float,
    run: str,
    sku: str,
    environment: Mapping[str, str | None],
    zone: str = "",
) -> pd.DataFrame:
    """The readings of one stage's result: every row with a number.

    ``rows``: objects with ``metric, device, labels, unit, value``: ``rows.Row``, ``measured.Measured`` or
    ``model.Observation``. ``at``: when it was measured (epoch seconds or a time with zone).
    """
    usable = [row for row in rows if row.value is not None and np.isfinite(row.value)]
    group, day = group_of(sku, environment, zone), day_of(at)
    return as_readings(
        pd.DataFrame(
            {
                "node": node,
                "device": [row.device for row in usable],
                "group": group,
                "sku": sku,
                "metric": [row.metric for row in usable],
                "labels": [labels_text(row.labels) for row in usable],
                "unit": [row.unit for row in usable],
                "value": [float(row.value) for row in usable],
                "at": day,
                "run": run,
            }
        )
    )


def as_readings(frame: pd.DataFrame) -> pd.DataFrame:
    """Any frame with these columns in the types and order that the fleet functions expect, indexed 0…n−1.

    ``kind`` and ``slot`` are derived from ``device`` if absent. A value that is no number becomes NaN. Raises KeyError
    if another column is absent.
    """
    columns: dict[str, Any] = {}
    device = _category(frame["device"])
    names = device.cat.categories.tolist()
    for name in COLUMNS:
        if name == "device":
            columns[name] = device
        elif name == "kind" and name not in frame.columns:
            kinds = np.array([kind_of(each) for each in names] or [""], dtype=object)
            columns[name] = kinds[device.cat.codes.to_numpy()]
        elif name == "slot" and name not in frame.columns:
            slots = np.array([slot_of(each) for each in names] or [-1], dtype=np.int16)
            columns[name] = slots[device.cat.codes.to_numpy()]
        elif name == "slot":
            columns[name] = frame[name].to_numpy(dtype=np.int16)
        elif name in ("value", "at"):
            columns[name] = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64)
        else:
            columns[name] = frame[name]
        if name in NAMES:
            columns[name] = _category(columns[name]).array
    return pd.DataFrame(columns, columns=list(COLUMNS))


def together(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Several frames of readings as one, still with categories."""
    parts = [frame for frame in frames if len(frame)]
    if not parts:
        return as_readings(pd.DataFrame(columns=list(COLUMNS)))
    joined: dict[str, Any] = {}
    for name in COLUMNS:
        if name in NAMES:
            joined[name] = pd.api.types.union_categoricals([part[name].array for part in parts], sort_categories=True)
        else:
            joined[name] = np.concatenate([part[name].to_numpy() for part in parts])
    return pd.DataFrame(joined, columns=list(COLUMNS))


def _category(names: Any) -> pd.Series:
    series = pd.Series(names)
    if isinstance(series.dtype, pd.CategoricalDtype):
        return series
    return series.fillna("").astype(str).astype("category")
