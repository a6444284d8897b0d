"""From the fleet's failures to the risk of each node: history in the planner's terms, and the model learned from it."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence

import numpy as np

from muster.model.failures import Failure
from muster.model.nodes import Node
from muster.rules.idle import hazard
from muster.rules.idle.history import GROUPS, Clocks, Faults, History, Units, Whole, episodes

HORIZON = datetime.timedelta(days=730)
"""Failures longer ago are ignored."""
BATCH = "batch"
"""The label of a node that names the batch in which it was delivered."""
RELEARN_H = 30 * 24.0


@dataclasses.dataclass(frozen=True, eq=False)
class Risk:
    """``history`` of the fleet up to ``hour``, with the place of each node in it; ``model``: learned from it."""

    history: History
    number: dict[str, int]
    model: hazard.Model
    hour: float

    def clocks(self, nodes: Sequence[Node]) -> Clocks:
        """Returns the clocks of these nodes now. A node that is not in the history has no faults."""
        unit = np.array([self.number.get(node.name, -1) for node in nodes], dtype=np.int64)
        clocks = Clocks.without_faults(len(nodes), self.history.units.labels.shape[1])
        known = np.flatnonzero(unit >= 0)
        found = self.history.clocks(unit[known], np.full(len(known), self.hour))
        for field in dataclasses.fields(Clocks):
            getattr(clocks, field.name)[known] = getattr(found, field.name)
        return clocks


@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """A model of the fleet, and for each kind of its labels (SKU, batch) the values, in the order of its ratios."""

    model: hazard.Model
    names: tuple[tuple[str, ...], ...]

    def to_json(self) -> str:
        """Returns it as ``from_json`` reads it."""
        tables = {name: getattr(self.model, name).tolist() for name in TABLES}
        labels = [ratios.tolist() for ratios in self.model.labels]
        scale = {"level": self.model.level, "slope": self.model.slope}
        more = {"labels": labels, "names": self.names, "groups": GROUPS}
        return json.dumps({**tables, **scale, **more})

    @classmethod
    def from_json(cls, text: str) -> Learned:
        """The reverse of ``to_json``. Raises ValueError for what another version of Muster wrote."""
        try:
            read = json.loads(text)
            tables = {name: np.array(read[name], dtype=np.float64) for name in TABLES}
            labels = tuple(np.array(ratios, dtype=np.float64) for ratios in read["labels"])
            level, slope = float(read["level"]), float(read["slope"])
            made = hazard.Model(**tables, labels=labels, level=level, slope=slope)
            names = tuple(tuple(map(str, each)) for each in read["names"])
            groups = tuple(read["groups"])
        except Exception as error:
            raise ValueError(f"what was learned cannot be read: {error!r}") from error
        usual = hazard.public_prior().model
        fits = all(getattr(made, name).shape == getattr(usual, name).shape for name in TABLES)
        if groups != GROUPS or not fits or [len(each) for each in names] != [*map(len, labels)]:
            raise ValueError("what was learned is of other groups and factors than those of this version")
        return cls(made, names)


TABLES = ("base", "since_any", "since_same", "since_swap", "neighbours")
"""The tables of a model that are the same for every fleet."""


def risk_of(
    nodes: Sequence[Node], served: Mapping[str, datetime.datetime], failures: Sequence[Failure], now: datetime.datetime,
    learned: Learned | None = None,
) -> tuple[Risk, Learned]:  # fmt: skip
    """Returns the risk as of ``now``, and what was learned from the failures: ``learned``, if it is given.

    Nodes may be alike by SKU and batch (label ``batch``). ``served``: when each node's machine first entered
    production; it can fail in service only from then on. Nodes that never entered it are left out, and simulated ones
    where there are real ones, about which they say nothing.
    """
    nodes = [node for node in nodes if node.name in served]
    nodes = [node for node in nodes if not node.simulated] or nodes
    zero = now - HORIZON
    hour = HORIZON.total_seconds() / 3600.0
    number = {node.name: place for place, node in enumerate(nodes)}
    kinds = [[node.sku for node in nodes], [node.labels.get(BATCH, "") for node in nodes]]
    known = learned.names if learned else ((), ())
    names = tuple(
        (*of, *sorted({value for value in values if value}.difference(of)))
        for of, values in zip(known, kinds, strict=True)
    )
    racks = _numbered([node.rack for node in nodes], sorted({node.rack for node in nodes} - {""}))

    def hours(at: datetime.datetime | None) -> float:
        return np.inf if at is None else max((at - zero).total_seconds() / 3600.0, 0.0)

    each = np.arange(len(nodes), dtype=np.int64)
    start = np.array([hours(served[node.name]) for node in nodes])
    labels = np.column_stack([_numbered(values, of) for values, of in zip(kinds, names, strict=True)])
    units = Units(
        start=np.minimum(start, hour), end=np.full(len(nodes), hour), part=each, place=each, rack=racks, labels=labels
    )
    kept = [one for one in failures if one.node in number and zero <= one.at <= now]
    unit = np.array([number[one.node] for one in kept], dtype=np.int64)
    faults = Faults(
        unit=unit,
        group=np.array([GROUPS.index(one.group) for one in kept], dtype=np.int64),
        at=np.array([hours(one.at) for one in kept]),
        back=np.array([hours(one.over) for one in kept]),
        part=np.where([one.replaced for one in kept], -1, unit).astype(np.int64),
        place=unit,
        rack=units.rack[unit],
    )
    history = History(units, episodes(faults))
    if learned is None:
        begin = float(start.min(initial=hour))
        models, _ = hazard.followed(history, hazard.public_prior(), np.append(np.arange(begin, hour, RELEARN_H), hour))
        # A kind may have fewer ratios than names: a label of nodes that were never in service says nothing.
        ratios = tuple(
            np.append(of, np.ones(len(values) - len(of))) for of, values in zip(models[-1].labels, names, strict=True)
        )
        learned = Learned(dataclasses.replace(models[-1], labels=ratios), names)
    return Risk(history, number, learned.model, hour), learned


def _numbered(values: Sequence[str], names: Sequence[str]) -> Whole:
    """The place of each value among the names, -1 for none."""
    places = {name: place for place, name in enumerate(names)} | {"": -1}
    return np.array([places[value] for value in values], dtype=np.int64)
