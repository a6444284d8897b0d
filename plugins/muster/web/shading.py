"""Figures that shade the map: read once per ``KEPT_S`` for all viewers, since they cover all nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from muster import store
from muster.model.figures import NodeFigure
from muster.web import keys
from muster.web.shared import Shared
from muster_criteria.labels import Key

KEPT_S = 60
"""Seconds that figures are shown before they are read again."""

_figures = Shared[Mapping[str, NodeFigure]](20)
_metrics = Shared[list[Key]](1)


def figures(colour: str) -> Mapping[str, NodeFigure]:
    """{node: its figure} of the metric that ``colour`` names (``keys.address``); empty if no node has measured it."""
    return _figures.get((colour, _period()), lambda: store.node_metrics.figures(keys.read(colour)))


def metrics() -> list[Key]:
    """What the map can show, in order."""
    return _metrics.get(_period(), store.node_metrics.judged)


def _period() -> int:
    return int(time.time()) // KEPT_S
