"""A SKU's own limits for a whole fleet at once: plain floors, ceilings, exact numbers, and devices that answer.

Limits relative to another measurement and on texts need one node's whole result, and are left to the stage's judge.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from muster_criteria.fleet.series.keyed import Codes, Numbers
from muster_criteria.labels import labels_of
from muster_criteria.rows import PRESENCE
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku

COLUMNS = ("row", "rule", "breach", "expected", "share", "fault", "action")
_NAMES = ("sku", "kind", "metric", "labels", "unit")
_LOWER, _UPPER = ("floor", "at_least"), ("ceiling", "at_most")


def absolute(readings: pd.DataFrame, skus: Mapping[str, Sku], stage: str = "") -> pd.DataFrame:
    """The readings (``row``: position) that break a limit of their node's SKU; columns ``COLUMNS``.

    ``stage``: where all of them were taken; without it, limits of certain stages are left out.
    """
    value = readings["value"].to_numpy()
    which, names = _distinct(readings)
    found = []
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(len(names) + 1))
    for number, (sku, kind, metric, labels, unit) in enumerate(names):
        rows = order[starts[number] : starts[number + 1]]
        if metric == PRESENCE:
            found.append(_absent(readings, rows))
        limits = skus[sku].all_limits if sku in skus else ()
        found += [
            _broken(limit, rows, value[rows])
            for limit in limits
            if limit.number is not None
            and (not limit.stages or stage in limit.stages)
            and limit.unit == unit
            and limit.applies_to(metric, kind, dict(labels_of(labels)))
        ]
    found = [part for part in found if len(part)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(COLUMNS))


def _distinct(readings: pd.DataFrame) -> tuple[Codes, list[tuple[str, ...]]]:
    code = np.zeros(len(readings), dtype=np.int64)
    for name in _NAMES:
        code = code * max(len(readings[name].cat.categories), 1) + readings[name].cat.codes.to_numpy()
    which, distinct = pd.factorize(code)
    return which.astype(np.int64), [_names(readings, int(number)) for number in distinct]


def _names(readings: pd.DataFrame, number: int) -> tuple[str, ...]:
    parts: list[str] = []
    for name in reversed(_NAMES):
        categories = readings[name].cat.categories
        number, at = divmod(number, max(len(categories), 1))
        parts.append(str(categories[at]))
    return tuple(reversed(parts))


def _broken(limit: Limit, rows: Codes, value: Numbers) -> pd.DataFrame:
    at = float(limit.number or 0.0)
    if limit.key in _LOWER:
        margin = value - at
    elif limit.key in _UPPER:
        margin = at - value
    elif limit.key in ("exactly", "equals"):
        margin = -np.abs(value - at)
    else:
        return pd.DataFrame(columns=list(COLUMNS))
    broken = margin < 0.0
    share = -margin[broken] / abs(at) if at else np.full(int(broken.sum()), np.inf)
    rule = {"rule": "expected" if limit.key in ("at_least", "at_most", "equals") else limit.key, "breach": limit.breach}
    more = {"expected": at, "share": share, "fault": limit.fault.value, "action": limit.action.value}
    return pd.DataFrame({"row": rows[broken], **rule, **more}, columns=list(COLUMNS))


def _absent(readings: pd.DataFrame, rows: Codes) -> pd.DataFrame:
    """Devices that do not answer while others of their node do; if none does, it is the driver or the baseboard."""
    value, node = readings["value"].to_numpy()[rows], readings["node"].cat.codes.to_numpy()[rows]
    absent = (value == 0.0) & np.isin(node, node[value == 1.0])
    rule = {"rule": "expected_devices", "breach": "fail", "expected": 1.0, "share": 1.0}
    return pd.DataFrame({"row": rows[absent], **rule, "fault": "gpu", "action": "reseat"}, columns=list(COLUMNS))
