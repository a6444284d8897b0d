"""Sender × receiver: what arrived at each node from its partners, rail by rail and over all at once, for a heat map."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from muster_criteria.cluster.fabric.judging.found import MatrixCell, RailMatrix
from muster_criteria.cluster.fabric.observed import ALONE, PROBE, TOGETHER
from muster_criteria.cluster.fabric.topology import Topology
from muster_criteria.measured import Measured

ALL = ""
"""The rail of the matrix of all rails at once."""


def matrices(topology: Topology, rounds: Sequence[Mapping[str, Sequence[Measured] | None]]) -> tuple[RailMatrix, ...]:
    """One matrix for each rail, and one of all at once if they were measured so.

    ``rounds``: what each node measured in each, None for one that returned nothing.
    """
    cells: dict[str, dict[tuple[str, str], MatrixCell]] = {rail: {} for rail in (*topology.rails, ALL)}
    for returned in rounds:
        for rail, found in _of_round(topology, returned).items():
            usual = statistics.median(rate for rate, _, _ in found.values())
            for (sender, receiver), (rate, wrong, delay) in found.items():
                cell = MatrixCell(sender, receiver, rate, rate / usual if usual > 0 else 0.0, wrong, delay)
                before = cells[rail].get((sender, receiver))
                if before is None or (cell.wrong, -cell.share) > (before.wrong, -before.share):
                    cells[rail][sender, receiver] = cell
    nodes = tuple(topology.nodes[node] for members in topology.members for node in members)
    return tuple(RailMatrix(rail, nodes, tuple(found.values())) for rail, found in cells.items() if found or rail)


def _of_round(
    topology: Topology, returned: Mapping[str, Sequence[Measured] | None]
) -> dict[str, dict[tuple[str, str], tuple[float, bool, float | None]]]:
    """By rail and (sender, receiver): the best rate over all flows, whether a wrong byte arrived, and the round trip in
    microseconds, which one of the two measures. At ``ALL`` the sum of the rates at once, where each rail has one."""
    rates: dict[tuple[str, str, str, str], float] = {}
    wrong: set[tuple[str, str, str]] = set()
    delays: dict[tuple[str, str, str], float] = {}
    for receiver, rows in returned.items():
        for row in rows or ():
            sender, rail, mode = (row.labels.get(key, "") for key in ("partner", "rail", "mode"))
            known = row.probe == PROBE and sender in topology.index and rail in topology.rails
            if not known or row.value is None:
                continue
            if row.metric == "pair_latency":
                delays[rail, sender, receiver] = delays[rail, receiver, sender] = row.value
            elif row.metric == "pair_bandwidth" and mode in (ALONE, TOGETHER):
                at = mode, rail, sender, receiver
                rates[at] = max(rates.get(at, 0.0), row.value)
            elif row.metric == "pair_wrong_bytes" and mode in (ALONE, TOGETHER) and row.value > 0:
                wrong.add((rail if mode == ALONE else ALL, sender, receiver))
    found: dict[str, dict[tuple[str, str], tuple[float, bool, float | None]]] = defaultdict(dict)
    at_once: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (mode, rail, sender, receiver), rate in rates.items():
        if mode == ALONE:
            cell = rail, sender, receiver
            found[rail][sender, receiver] = (rate, cell in wrong, delays.get(cell))
        else:
            at_once[sender, receiver].append(rate)
    for pair, each in at_once.items():
        if len(each) == len(topology.rails) > 1:
            found[ALL][pair] = (sum(each), (ALL, *pair) in wrong, None)
    return found
