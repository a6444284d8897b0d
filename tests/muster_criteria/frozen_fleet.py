"""A made-up fleet with frozen references, and what its sweeps say: for tests of the fleet's rules."""

from __future__ import annotations

import copy
import dataclasses
import datetime
from typing import Any

import pandas as pd

from muster_criteria.fleet.peers.history import History, build_history
from muster_criteria.fleet.peers.snapshot import build_snapshot
from muster_criteria.fleet.series.readings import DAY_S
from muster_criteria.fleet.sweep import Sweep, sweep
from tests.muster_criteria.fleet_readings import DAY, Fleet

FLEET = Fleet(nodes=120, metrics=6, seed=7)
EARLIER = tuple(DAY - 10 * visit for visit in range(5, 0, -1))
NODE = "node-00007"


def at(day: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(day * DAY_S, datetime.UTC)


class Frozen:
    """A fleet's references, and what it measures today."""

    def __init__(self) -> None:
        readings = FLEET.visits(*EARLIER, DAY)
        self.earlier = readings[readings["at"] < DAY].reset_index(drop=True)
        self.today = readings[readings["at"] == DAY].reset_index(drop=True)
        self.snapshot = build_snapshot(self.earlier, at(DAY - 1), FLEET.comparisons)
        self.history = build_history(self.earlier, self.snapshot, FLEET.comparisons)

    def straying(self, times: float) -> Frozen:
        """The same, of a fleet whose single readings stray so much further."""
        other, tails = copy.copy(self), self.snapshot.tails.copy()
        tails.loc[tails["repeats"] == 1, [name for name in tails if str(name).startswith("q")]] *= times
        other.snapshot = dataclasses.replace(self.snapshot, tails=tails)
        return other

    def sweep(self, today: pd.DataFrame, history: History | None = None, **more: Any) -> Sweep:
        return sweep(today, self.snapshot, history, FLEET.comparisons, **more)

    def of_node(self, node: str = NODE) -> pd.DataFrame:
        return self.today[self.today["node"] == node].reset_index(drop=True)

    def usual(self, metric: str, slot: int) -> float:
        cells = self.snapshot.cells
        found = cells[(cells["metric"] == metric) & (cells["slot"] == slot) & cells["group"].str.startswith("sku|")]
        return float(found["median"].iloc[0])


def rules_and_levels(found: Sweep, **where: str) -> set[tuple[str, str]]:
    """(rule, breach) of the findings about these."""
    rows = found.findings
    for name, wanted in where.items():
        rows = rows[rows[name] == wanted]
    return set(zip(rows["rule"], rows["breach"], strict=True))


def level(frozen: Frozen, node: str = NODE) -> pd.DataFrame:
    """Today's readings of a node, each exactly as usual for its slot."""
    rows = frozen.of_node(node)
    usual = [frozen.usual(metric, slot) for metric, slot in zip(rows["metric"], rows["slot"], strict=True)]
    return rows.assign(value=usual)
