"""Sender × receiver: what arrived at each node from each of its partners, rail by rail, for a heat map."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from muster_criteria.cluster.fabric.found import MatrixCell, RailMatrix
from muster_criteria.cluster.fabric.observed import ALONE, PROBE
from muster_criteria.cluster.fabric.topology import Topology
from muster_criteria.measured import Measured


def matrices(topology: Topology, rounds: Sequence[Mapping[str, Sequence[Measured] | None]]) -> tuple[RailMatrix, ...]:
    """One matrix for each rail. ``rounds``: what each node measured in each, None for one that returned nothing."""
    cells: dict[str, dict[tuple[str, str], MatrixCell]] = {rail: {} for rail in topology.rails}
    for returned in rounds:
        for rail, found in _of_round(topology, returned).items():
            usual = statistics.median(rate for rate, _, _ in found.values())
            for (sender, receiver), (rate, wrong, delay) in found.items():
                cell = MatrixCell(sender, receiver, rate, rate / usual if usual > 0 else 0.0, wrong, delay)
                before = cells[rail].get((sender, receiver))
                if before is None or (cell.wrong, -cell.share) > (before.wrong, -before.share):
                    cells[rail][sender, receiver] = cell
    nodes = tuple(topology.nodes[node] for members in topology.members for node in members)
    return tuple(RailMatrix(rail, nodes, tuple(found.values())) for rail, found in cells.items())


def _of_round(
    topology: Topology, returned: Mapping[str, Sequence[Measured] | None]
) -> dict[str, dict[tuple[str, str], tuple[float, bool, float | None]]]:
    """By rail and (sender, receiver): the best rate over all flows, whether a wrong byte arrived, and the round trip in
    microseconds, which one of the two measures."""
    rates: dict[tuple[str, str, str], float] = {}
    wrong: set[tuple[str, str, str]] = set()
    delays: dict[tuple[str, str, str], float] = {}
    for receiver, rows in returned.items():
        for row in rows or ():
            sender, rail = row.labels.get("partner", ""), row.labels.get("rail", "")
            known = row.probe == PROBE and sender in topology.index and rail in topology.rails
            if not known or row.value is None:
                continue
            at, alone = (rail, sender, receiver), row.labels.get("mode") == ALONE
            if row.metric == "pair_latency":
                delays[at] = delays[rail, receiver, sender] = row.value
            elif row.metric == "pair_bandwidth" and alone:
                rates[at] = max(rates.get(at, 0.0), row.value)
            elif row.metric == "pair_wrong_bytes" and alone and row.value > 0:
                wrong.add(at)
    found: dict[str, dict[tuple[str, str], tuple[float, bool, float | None]]] = defaultdict(dict)
    for at, rate in rates.items():
        found[at[0]][at[1:]] = (rate, at in wrong, delays.get(at))
    return found
