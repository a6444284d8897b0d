"""What several nodes share on one rail: the whole rail, a small leaf, or a switch where leaves are not known.

No partner can confirm such a part as the node's own: a node behind a slow switch is low with every partner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from muster_criteria.cluster.fabric.decoding.cells import Cells
from muster_criteria.cluster.fabric.decoding.levels import EFFECT_MIN, Level
from muster_criteria.cluster.fabric.decoding.nodes import symptom_of
from muster_criteria.cluster.fabric.decoding.parts import Evidence, Part, PartKind, Symptom, is_own
from muster_criteria.cluster.fabric.rounds import Flags
from muster_criteria.cluster.fabric.topology import Topology


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
    """Explains cells that carried nothing on these rails, which as a whole carry nothing. On a rail that is only
    slower, a dead port is a fault of its own."""
    for rail in rails:
        rounds, nodes = np.nonzero(cells.low[:, :, rail] & (cells.share[:, :, rail] == 0.0))
        cells.explain(rounds, nodes, rail)


def grouped(cells: Cells, of_nodes: Sequence[Evidence], everywhere: Flags) -> list[Evidence]:
    """The parts of nodes; those that may have one shared cause are merged.

    If all measured nodes of a leaf are low on one rail, they become one part once the first of them is confirmed; a
    node that is alone on its leaf may share a fault with its uplinks. Where leaves are not known, several may share a
    switch. ``everywhere``: (nodes, rails) that were low in every round.
    """
    by_rail: dict[int, list[Evidence]] = defaultdict(list)
    for each in of_nodes:
        by_rail[max(each.part.rail, 0 if len(cells.topology.rails) == 1 else -1)].append(each)
    if not cells.topology.known:
        return [each for rail, parts in sorted(by_rail.items()) for each in _anywhere(rail, parts)]
    whole = by_rail.pop(-1, [])
    found = [_unwitnessed(cells, -1, each) for each in whole]
    for rail, parts in sorted(by_rail.items()):
        found += _on_leaves(cells, rail, parts, everywhere)
    return found


def _unwitnessed(cells: Cells, rail: int, each: Evidence) -> Evidence:
    """The node's part; or, once confirmed, a part shared with the leaf's uplinks if no other node of the leaf is good
    on the rail (or on any rail). A part that ``is_own`` remains the node's."""
    leaf = cells.topology.leaf_of[each.part.a]
    others = [node for node in cells.topology.members[leaf] if node != each.part.a]
    columns = slice(None) if rail < 0 else slice(rail, rail + 1)
    if not each.is_named or is_own(each.part.kind, each.symptom) or cells.good[:, others, columns].any():
        return each
    return _together(Part(PartKind.SHARED, leaf, rail=rail), [each])


def _anywhere(rail: int, parts: Sequence[Evidence]) -> list[Evidence]:
    """Parts of one rail, or of all rails at -1, where leaves are not known: two or more confirmed ones become one.

    So do parts that corrupt: two bad nodes may have confirmed a third, healthy one.
    """
    alike = [each for each in parts if each.is_named and each.part.kind is not PartKind.GPU]
    if len(alike) < 2:
        return [*parts]
    return [_together(Part(PartKind.SHARED, 0, rail=rail), alike), *(each for each in parts if each not in alike)]


def fast(cells: Cells) -> Flags:
    """Which cells, shape (rounds, nodes, rails), are as fast as the usual rate of the best round over as many flows or
    fewer, or have no such round to compare with."""
    best = {
        variants: np.fmax.reduce([each.usual for each in cells.levels if each.variants <= variants])
        for variants in {each.variants for each in cells.levels}
    }
    found = np.ones(cells.good.shape, dtype=bool)
    for at, each in enumerate(cells.levels):
        with np.errstate(invalid="ignore"):
            fast = ~(each.rate < (1.0 - EFFECT_MIN) * best[each.variants])
        found[at, each.a], found[at, each.b] = fast, fast
    return found


def _on_leaves(cells: Cells, rail: int, parts: Sequence[Evidence], everywhere: Flags) -> list[Evidence]:
    measured: Flags = np.any((cells.low | cells.good)[:, :, rail], axis=0)
    by_leaf: dict[int, list[Evidence]] = defaultdict(list)
    for each in parts:
        by_leaf[cells.topology.leaf_of[each.part.a]].append(each)
    found = []
    for leaf, here in by_leaf.items():
        nodes = [node for node in cells.topology.members[leaf] if measured[node]]
        low = {each.part.a for each in here} | {node for node in nodes if everywhere[node, rail]}
        if len(nodes) > 1 and low.issuperset(nodes) and any(each.is_named for each in here):
            found.append(_together(Part(PartKind.LEAF, leaf, rail=rail), here, nodes))
        else:
            found += [_unwitnessed(cells, rail, each) for each in here]
    return found


def _together(part: Part, parts: Sequence[Evidence], touches: Sequence[int] = ()) -> Evidence:
    """One part for several, with the combined evidence against them."""
    share = float(np.median([each.share for each in parts]))
    wrong = all(each.symptom is Symptom.CORRUPTS for each in parts)
    numbers = tuple(sorted({number for each in parts for number in each.rounds}))
    partners = tuple(sorted({partner for each in parts for partner in each.partners}))
    confirmed = max(each.confirmed for each in parts)
    nodes = tuple(sorted({*touches, *(each.part.a for each in parts)}))
    return Evidence(part, symptom_of(share, wrong), share, numbers, partners, confirmed, nodes)
