"""From the rounds so far to the parts that explain them, the widest part first.

A good cell clears every part that it went over. What stays low is explained by as few parts as possible, in this
order: rails that are slower than the others as a whole; nodes that are low on most rails in every round, unless most of
their leaf is; leaves and uplinks most of whose nodes are low on one rail; one rail of a node that is low in every
round, unless all of its leaf is, or others are and their leaves are not known; one path between two leaves whose ends
are good elsewhere. A part is *named* when it was low with two different partners that were chosen for it; before that
it is a suspect. So nothing fails on one round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster_criteria.cluster.fabric.decoding import nodes, paths, shared, switches, together
from muster_criteria.cluster.fabric.decoding.cells import Cells, laid_out
from muster_criteria.cluster.fabric.decoding.levels import level
from muster_criteria.cluster.fabric.decoding.parts import OF_THE_NODE, Diagnosis, Evidence, Part, PartKind, Symptom
from muster_criteria.cluster.fabric.rounds import Flags, RoundResult
from muster_criteria.cluster.fabric.topology import Topology


def decode(topology: Topology, results: Sequence[RoundResult]) -> Diagnosis:
    """The parts at fault and the suspects that these rounds show."""
    if not results:
        return Diagnosis((), (), (), 0, 0, 0.0)
    rails = shared.whole_rails(topology, [level(topology, result) for result in results])
    slower = [each.part.rail for each in rails]
    cells = laid_out(topology, [level(topology, result, slower) for result in results])
    shared.explain_dead(cells, [each.part.rail for each in rails if each.symptom is Symptom.DEAD])
    of_nodes = nodes.low_nodes(cells)
    wide = switches.low_switches(cells)
    low_everywhere = nodes.low_everywhere(cells)
    of_nodes += nodes.low_rails(cells, low_everywhere)
    found = [*rails, *wide, *shared.grouped(cells, of_nodes, low_everywhere)]
    uncovered = paths.uncovered(cells, {each.part for each in found})
    found += paths.low_paths(cells)
    at_once = together.laid_out_at_once(topology, results, cells)
    compared, not_judged = _compared(cells, found), together.not_judged(at_once, results, cells)
    found += together.low_together(at_once)
    found += _silent(cells, results)
    once = cells.open_low() & (cells.partner > np.arange(len(topology.nodes))[None, :])[:, :, None]
    found.sort(key=lambda each: each.part)
    named, suspects = (tuple(each for each in found if each.is_named is wanted) for wanted in (True, False))
    return Diagnosis(
        named, suspects, uncovered, int(once.sum()), sum(each.unjudged for each in cells.levels),
        max(each.noise for each in cells.levels), compared,
        {each.number: each.threshold for each in cells.levels},
        {each.number: each.threshold for each in at_once.levels}, not_judged,
    )  # fmt: skip


def _compared(cells: Cells, found: Sequence[Evidence]) -> frozenset[tuple[int, int]]:
    """(Node, rail) that was good once, or low because of a part that it goes over. A node that was low only with nodes
    charged for it does not count: it may be as bad as they are. A bare cell counts only for a node that is charged.
    Where leaves are not known, a good cell counts only if it is ``shared.fast``."""
    low: Flags = np.any(cells.low, axis=0)
    low_by_rate: Flags = np.any(cells.low & ~cells.bare, axis=0)
    good = cells.good & ~cells.bare
    compared: Flags = np.any(good if cells.topology.known else good & shared.fast(cells), axis=0)
    for each in found:
        if each.part.between_nodes:  # of a path both ends are good elsewhere, and that counts by itself
            continue
        rail = slice(None) if each.part.rail < 0 else each.part.rail
        nodes = list(each.touches)
        compared[nodes, rail] |= (low if each.part.kind in OF_THE_NODE else low_by_rate)[nodes, rail]
    return frozenset((int(node), int(rail)) for node, rail in np.argwhere(compared))


def _silent(cells: Cells, results: Sequence[RoundResult]) -> list[Evidence]:
    """Nodes that returned nothing in their last rounds; a node that has answered since is cleared."""
    found = []
    for node in sorted(frozenset().union(*(result.silent for result in results))):
        numbers: list[int] = []
        for at in reversed(range(len(results))):
            if node in results[at].silent:
                numbers.insert(0, results[at].round.number)
            elif cells.partner[at, node] >= 0:
                break
        if numbers:
            part = Part(PartKind.NODE, node)
            found.append(Evidence(part, Symptom.SILENT, 0.0, tuple(numbers), (), len(numbers) - 1, (node,)))
    return found
