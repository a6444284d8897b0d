"""Figures that shade the map: read once in ``KEPT_S`` for all viewers, since they cover all nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from muster import records
from muster.records import NodeFigure
from muster.web.rack_map import read_key

KEPT_S = 60.0
"""Seconds that figures are shown before they are read anew."""
KEPT_MAX = 20

_kept: dict[str, tuple[float, Any]] = {}
_lock = threading.Lock()


def figures(colour: str) -> Mapping[str, NodeFigure]:
    """{node: its figure} of the metric that ``colour`` names (``rack_map.key``); empty if no node has measured it."""
    metric, labels = read_key(colour)
    found: Mapping[str, NodeFigure] = _fresh(colour, lambda: records.node_figures(metric, labels))
    return found


def metrics() -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """(metric, its labels) of what the map can show, in order."""
    found: list[tuple[str, tuple[tuple[str, str], ...]]] = _fresh("", records.judged_metrics)
    return found


def _fresh(name: str, read: Callable[[], Any]) -> Any:
    with _lock:
        now = time.monotonic()
        if name not in _kept or now - _kept[name][0] > KEPT_S:
            if len(_kept) >= KEPT_MAX:
                _kept.pop(min(_kept, key=lambda each: _kept[each][0]))
            _kept[name] = (now, read())
        return _kept[name][1]
