"""The map: nodes by pod, rack and slot, coloured by their state or by one metric. Pure."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Collection, Mapping, Sequence

from muster.model.figures import FleetRow, NodeFigure
from muster.web.fleet import GROUP_OF, GROUPS
from muster_criteria.devices import natural
from muster_criteria.words import number

CELL, GAP = 9, 2
"""Pixels of a node in the map, and between two."""
COLUMNS = 16
"""Nodes in a row of the map."""
CELLS_MAX = 400
"""Up to this many nodes, each is a link of its own; beyond that, each rack is."""
SHADES = 5
OUT, UNMEASURED = "bad", "unmeasured"
ORDER = (*GROUPS, OUT, *(f"shade{place}" for place in range(SHADES, 0, -1)), UNMEASURED)
"""All classes of cells, in the order in which they are drawn and explained."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One node of the map; ``title`` is what it shows under the pointer."""

    node: str
    x: int
    y: int
    group: str
    title: str


@dataclasses.dataclass(frozen=True)
class Rack:
    """One rack of the map: a cell a node, or for each class one SVG path of squares if the map has too many nodes.

    ``out``: how many of its nodes are out of service, or do not serve although they are in production.
    """

    pod: str
    name: str
    nodes: int
    out: int
    cells: tuple[Cell, ...]
    paths: tuple[tuple[str, str], ...]
    width: int
    height: int


@dataclasses.dataclass(frozen=True)
class Colours:
    """What colours the map. ``classes``: {node: class}; ``titles``: {node: its words}; ``legend``: (class, words).
    ``mixed``: whether nodes of several SKUs are shaded by one scale.
    """

    classes: Mapping[str, str]
    titles: Mapping[str, str]
    legend: tuple[tuple[str, str], ...] = ()
    mixed: bool = False


def by_state(rows: Sequence[FleetRow], away: Mapping[str, str]) -> Colours:
    """Colours by the group of each node's state. ``away``: why nodes in production do not serve: they are out, too."""
    classes = {row.node: "out" if row.node in away else GROUP_OF[row.state] for row in rows}
    return Colours(classes, {row.node: ", ".join(filter(None, (row.state, away.get(row.node)))) for row in rows})


def by_metric(rows: Sequence[FleetRow], figures: Mapping[str, NodeFigure]) -> Colours:
    """Colours by fifths of the values of the nodes within limits, the worst fifth the strongest."""
    known = {row.node: figures[row.node] for row in rows if row.node in figures}
    values = sorted(figure.value for figure in known.values() if figure.ok)
    bounds = statistics.quantiles(values, n=SHADES) if len(values) > 1 else []
    classes, titles = {}, {}
    for row in rows:
        figure = known.get(row.node)
        classes[row.node] = _shade(figure, bounds) if figure else UNMEASURED
        titles[row.node] = f"{number(figure.value)} {figure.unit}" if figure else "not measured"
    skus = {row.sku for row in rows if row.node in known}
    return Colours(classes, titles, _legend(classes, known), len(skus) > 1)


def _shade(figure: NodeFigure, bounds: Sequence[float]) -> str:
    if not figure.ok:
        return OUT
    below = sum(figure.value > bound for bound in bounds)
    return f"shade{SHADES - below if figure.floored else 1 + below}"


def _legend(classes: Mapping[str, str], known: Mapping[str, NodeFigure]) -> tuple[tuple[str, str], ...]:
    """For each class in use: how many nodes it has, and from which to which value."""
    members: dict[str, list[str]] = collections.defaultdict(list)
    for node, group in classes.items():
        members[group].append(node)
    found = []
    for group in ORDER:
        if nodes := members.get(group):
            values = sorted(known[node].value for node in nodes if node in known)
            unit = next((known[node].unit for node in nodes if node in known), "")
            name = {OUT: "out of limits", UNMEASURED: "not measured"}.get(group, "")
            ends = " to ".join(dict.fromkeys(number(value) for value in (values[:1] + values[-1:])))
            found.append((group, " ".join(filter(None, [name, ends, unit, f"({len(nodes)})"]))))
    return tuple(found)


def racks(rows: Sequence[FleetRow], colours: Colours, away: Collection[str]) -> list[Rack]:
    """Racks by pod and name, nodes without a rack last; a square a node in the order of slots, then of names.

    ``away``: nodes in production that do not serve.
    """
    places: dict[tuple[str, str], list[FleetRow]] = collections.defaultdict(list)
    for row in rows:
        places[row.pod, row.rack].append(row)
    singly = len(rows) <= CELLS_MAX
    return [
        _rack(pod, name, sorted(members, key=lambda row: (natural(row.slot), natural(row.node))), colours, away, singly)
        for (pod, name), members in sorted(places.items(), key=lambda each: _last_if_empty(each[0]))
    ]


def pods(found: Sequence[Rack]) -> list[tuple[str, list[Rack]]]:
    """The racks of ``racks`` in their order, by pod."""
    return [(pod, list(members)) for pod, members in itertools.groupby(found, key=lambda rack: rack.pod)]


def _last_if_empty(names: Sequence[str]) -> list[tuple[bool, tuple[tuple[int, str], ...]]]:
    return [(not name, natural(name)) for name in names]


def _rack(
    pod: str, name: str, members: Sequence[FleetRow], colours: Colours, away: Collection[str], singly: bool
) -> Rack:
    cells = [
        Cell(
            row.node, place % COLUMNS * (CELL + GAP), place // COLUMNS * (CELL + GAP), colours.classes[row.node],
            f"{row.node}: {colours.titles[row.node]}",
        )
        for place, row in enumerate(members)
    ]  # fmt: skip
    paths: dict[str, list[str]] = collections.defaultdict(list)
    for cell in () if singly else cells:
        paths[cell.group].append(f"M{cell.x} {cell.y}h{CELL}v{CELL}h-{CELL}z")
    return Rack(
        pod,
        name,
        len(members),
        sum(GROUP_OF[row.state] == "out" or row.node in away for row in members),
        tuple(cells) if singly else (),
        tuple((group, "".join(paths[group])) for group in ORDER if paths[group]),
        min(len(members), COLUMNS) * (CELL + GAP),
        -(-len(members) // COLUMNS) * (CELL + GAP),
    )
