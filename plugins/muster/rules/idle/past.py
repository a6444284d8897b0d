"""From the fleet's failures to the risk of each node: history in the planner's terms, and the model learned from it."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Sequence

import numpy as np

from muster.model.failures import Failure
from muster.model.nodes import Node
from muster.rules.idle import hazard
from muster.rules.idle.history import GROUPS, Clocks, Faults, History, Units, episodes

HORIZON = datetime.timedelta(days=730)
"""Older failures say nothing of a node any more."""
BATCH = "batch"
"""The label of a node that names what it was delivered with."""
RELEARN_H = 30 * 24.0


@dataclasses.dataclass(frozen=True, eq=False)
class Risk:
    """``history`` of the fleet up to ``hour``, with the place of each node in it; ``model``: learned from it."""

    history: History
    number: dict[str, int]
    model: hazard.Model
    hour: float

    def clocks(self, nodes: Sequence[Node]) -> Clocks:
        """Returns what is known of these nodes now. A node that is not in the history has none."""
        unit = np.array([self.number.get(node.name, -1) for node in nodes], dtype=np.int64)
        clocks = Clocks.without_faults(len(nodes), self.history.units.labels.shape[1])
        known = np.flatnonzero(unit >= 0)
        found = self.history.clocks(unit[known], np.full(len(known), self.hour))
        for field in dataclasses.fields(Clocks):
            getattr(clocks, field.name)[known] = getattr(found, field.name)
        return clocks


def risk_of(nodes: Sequence[Node], failures: Sequence[Failure], now: datetime.datetime) -> Risk:
    """Returns the risk as of ``now``. SKU and batch (label ``batch``) may make nodes alike."""
    zero = now - HORIZON
    hour = HORIZON.total_seconds() / 3600.0
    number = {node.name: place for place, node in enumerate(nodes)}
    numbers: dict[str, collections.defaultdict[str, int]] = {}

    def numbered(kind: str, value: str) -> int:
        of = numbers.setdefault(kind, collections.defaultdict())
        of.default_factory = of.__len__
        return of[value] if value else -1

    def hours(at: datetime.datetime | None) -> float:
        return np.inf if at is None else max((at - zero).total_seconds() / 3600.0, 0.0)

    each = np.arange(len(nodes), dtype=np.int64)
    start = np.array([hours(node.machine_since) if node.machine_since else hour for node in nodes])
    labels = [(numbered("sku", node.sku), numbered(BATCH, node.labels.get(BATCH, ""))) for node in nodes]
    units = Units(
        np.minimum(start, hour), np.full(len(nodes), hour), each, each,
        np.array([numbered("rack", node.rack) for node in nodes], dtype=np.int64),
        np.array(labels, dtype=np.int64).reshape(-1, 2),
    )  # fmt: skip
    kept = [one for one in failures if one.node in number and zero <= one.at <= now]
    unit = np.array([number[one.node] for one in kept], dtype=np.int64)
    faults = Faults(
        unit, np.array([GROUPS.index(one.group) for one in kept], dtype=np.int64),
        np.array([hours(one.at) for one in kept]), np.array([hours(one.back) for one in kept]),
        np.where([one.replaced for one in kept], -1, unit).astype(np.int64), unit, units.rack[unit],
    )  # fmt: skip
    history = History(units, episodes(faults))
    begin = float(start.min(initial=hour))
    cuts = np.append(np.arange(begin, hour, RELEARN_H), hour)
    models, _ = hazard.followed(history, hazard.public_prior(), cuts)
    return Risk(history, number, models[-1], hour)
