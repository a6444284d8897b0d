"""What several nodes share on one rail: the whole rail, a small leaf, or a switch where leaves are not known.

No partner can confirm such a part as the node's own: a node behind a slow switch is low with every partner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from muster_criteria.cluster.fabric.cells import Cells
from muster_criteria.cluster.fabric.levels import Level
from muster_criteria.cluster.fabric.nodes import NODES_MIN, symptom_of
from muster_criteria.cluster.fabric.parts import Evidence, Part, PartKind, Symptom
from muster_criteria.cluster.fabric.rounds import Flags
from muster_criteria.cluster.fabric.topology import Topology

_OF_A_RAIL = frozenset({PartKind.NIC, PartKind.GPU})


def whole_rails(topology: Topology, levels: Sequence[Level]) -> list[Evidence]:
    """Rails whose cells were slower than the other rails alike in every round of the screening.

    In a round of confirmation most pairs are chosen, and few are left to compare with. One round that is not slower
    shows that the cause is something that only the others go over, such as uplinks.
    """
    screening = [each for each in levels if not each.confirms]
    judged = np.array([(each.low | each.good).any(axis=0) for each in screening])
    lower = np.array([each.lower for each in screening])
    found = []
    for rail in map(int, np.flatnonzero(lower.any(axis=0) & (lower | ~judged).all(axis=0))):
        over = [each for each in screening if each.lower[rail]]
        share = float(np.median([each.of_others[rail] for each in over]))
        touches = {
            int(node)
            for each in over
            for nodes in (each.a, each.b)
            for node in nodes[each.low[:, rail] | each.good[:, rail]]
        }
        numbers = tuple(each.number for each in over)
        part = Part(PartKind.RAIL, 0, rail=rail)
        found.append(Evidence(part, symptom_of(share, False), share, numbers, (), 0, tuple(sorted(touches))))
    return found


def explain_dead(cells: Cells, rails: Sequence[int]) -> None:
    """Explains what carried nothing on these rails, which carry nothing as a whole. On a rail that is only slower, a
    dead port is a fault of its own."""
    for rail in rails:
        rounds, nodes = np.nonzero(cells.low[:, :, rail] & (cells.share[:, :, rail] == 0.0))
        cells.explain(rounds, nodes, rail)


def grouped(
    cells: Cells, of_nodes: Sequence[Evidence], everywhere: Flags, is_named: Callable[[Evidence], bool]
) -> list[Evidence]:
    """The parts of nodes, with those put together that the nodes may share.

    A leaf all of whose measured nodes are low on one rail is one part, once the first of them is confirmed. Where
    leaves are not known, so are all confirmed ones of a rail that is low for three nodes or more; the others are still
    to be confirmed or cleared. ``everywhere``: (nodes, rails) that were low in every round.
    """
    by_rail: dict[int, list[Evidence]] = defaultdict(list)
    for each in of_nodes:
        rail = each.part.rail if each.part.kind in _OF_A_RAIL else 0 if len(cells.topology.rails) == 1 else -1
        by_rail[rail].append(each)
    found = by_rail.pop(-1, [])
    for rail, parts in sorted(by_rail.items()):
        found += _on_leaves(cells, rail, parts, everywhere, is_named) if cells.topology.known else (
            _anywhere(rail, parts, is_named)
        )  # fmt: skip
    return found


def _anywhere(rail: int, parts: list[Evidence], is_named: Callable[[Evidence], bool]) -> list[Evidence]:
    confirmed = [each for each in parts if is_named(each)]
    if len(parts) < NODES_MIN or not confirmed:
        return parts
    rest = [each for each in parts if not is_named(each)]
    return [_together(Part(PartKind.SHARED, 0, rail=rail), confirmed), *rest]


def _on_leaves(
    cells: Cells, rail: int, parts: list[Evidence], everywhere: Flags, is_named: Callable[[Evidence], bool]
) -> list[Evidence]:
    measured: Flags = np.any((cells.low | cells.good)[:, :, rail], axis=0)
    by_leaf: dict[int, list[Evidence]] = defaultdict(list)
    for each in parts:
        by_leaf[cells.topology.leaf_of[each.part.a]].append(each)
    found = []
    for leaf, here in by_leaf.items():
        nodes = [node for node in cells.topology.members[leaf] if measured[node]]
        low = {each.part.a for each in here} | {node for node in nodes if everywhere[node, rail]}
        if len(nodes) > 1 and low.issuperset(nodes) and any(map(is_named, here)):
            found.append(_together(Part(PartKind.LEAF, leaf, rail=rail), here, nodes))
        else:
            found += here
    return found


def _together(part: Part, parts: Sequence[Evidence], touches: Sequence[int] = ()) -> Evidence:
    """One part for several, with what is held against each of them."""
    share = float(np.median([each.share for each in parts]))
    wrong = all(each.symptom is Symptom.CORRUPTS for each in parts)
    numbers = tuple(sorted({number for each in parts for number in each.rounds}))
    partners = tuple(sorted({partner for each in parts for partner in each.partners}))
    confirmed = max(each.confirmed for each in parts)
    nodes = tuple(sorted({*touches, *(each.part.a for each in parts)}))
    return Evidence(part, symptom_of(share, wrong), share, numbers, partners, confirmed, nodes)
