"""Parts of a node: the node itself, one of its rails, and which of GPU and NIC that rail's fault lies in."""

from __future__ import annotations

import numpy as np

from muster_criteria.cluster.fabric.decoding.cells import Cells
from muster_criteria.cluster.fabric.decoding.parts import Evidence, Part, PartKind, Symptom
from muster_criteria.cluster.fabric.rounds import Flags
from muster_criteria.cluster.fabric.topology import Indices

MOST = 0.75
"""Share of a leaf's nodes, or cells, that are low if the leaf or its uplinks are at fault."""
NODES_MIN = 3
"""Fewest nodes of a leaf whose common fault is charged to the leaf: two may be two faults."""


def low_nodes(cells: Cells) -> list[Evidence]:
    """Nodes that were low on more than half of their measured rails in every round, most often low first.

    A node is left out if it was low only with nodes already found, or if most nodes of its leaf are low: then the leaf
    is at fault.
    """
    open_low = cells.open_low().sum(axis=2)
    measured = open_low + cells.open_good().sum(axis=2)
    carried = (cells.bare & ~cells.low & ~cells.good).sum(axis=2)
    low = (measured > 0) & (2 * open_low > measured + carried)
    candidates = low.any(axis=0) & ~((measured > 0) & ~low).any(axis=0)
    candidates &= ~_of_a_leaf(cells, candidates, np.any(measured, axis=0))
    accepted = np.zeros(len(candidates), dtype=bool)
    found = []
    for node in _most_often(low, candidates):
        rounds = np.flatnonzero(low[:, node])
        if accepted[cells.partner[rounds, node]].all():
            continue
        accepted[node] = True
        found.append(_evidence(cells, Part(PartKind.NODE, node), rounds, node, slice(None)))
        cells.explain(np.arange(len(low)), np.full(len(low), node), slice(None))
    return found


def low_everywhere(cells: Cells) -> Flags:
    """Which rails of which nodes were low in every round with no part found that explains it: (nodes, rails)."""
    found: Flags = cells.open_low().any(axis=0) & ~np.any(cells.open_good(), axis=0)
    return found


def low_rails(cells: Cells, candidates: Flags) -> list[Evidence]:
    """(Node, rail) low in every round, most often low first: NIC, cable or port, or its GPU.

    Of those low equally often the lowest goes first, since finding it clears nodes that were low only with it.
    """
    low = cells.open_low()
    count = np.where(candidates, low.sum(axis=0), 0)
    mean = np.where(low, cells.share, 0.0).sum(axis=0) / np.maximum(count, 1)
    accepted = np.zeros(candidates.shape, dtype=bool)
    found = []
    for flat in np.lexsort((mean.ravel(), -count.ravel()))[: int(candidates.sum())]:
        node, rail = (int(at) for at in np.unravel_index(flat, count.shape))
        rounds = np.flatnonzero(low[:, node, rail])
        if accepted[cells.partner[rounds, node], rail].all():
            continue
        accepted[node, rail] = True
        kind = PartKind.GPU if _gpu_at_fault(cells, node, rail) else PartKind.NIC
        found.append(_evidence(cells, Part(kind, node, rail=rail), rounds, node, rail))
        cells.explain(np.arange(len(low)), np.full(len(low), node), rail)
    return found


def most_of_a_leaf(ill: int, nodes: int) -> bool:
    """Whether so many ill nodes may mean that the leaf's switch is at fault; of two or three nodes, all must be ill."""
    return nodes > 1 and ill >= MOST * nodes


def _of_a_leaf(cells: Cells, candidates: Flags, measured: Flags) -> Flags:
    """Which nodes are on a leaf of which most measured nodes are candidates; of a leaf with two nodes, both."""
    leaf, leaves = cells.topology.leaf_array, len(cells.topology.leaves)
    if not cells.topology.paths:
        return np.zeros(len(candidates), dtype=bool)
    counts = zip(np.bincount(leaf, candidates, leaves), np.bincount(leaf, measured, leaves), strict=True)
    whole: Flags = np.array([most_of_a_leaf(int(ill), int(size)) for ill, size in counts], dtype=bool)[leaf]
    return whole


def _most_often(low: Flags, candidates: Flags) -> list[int]:
    often = np.where(candidates, low.sum(axis=0), 0)
    return [int(node) for node in np.argsort(-often, kind="stable")[: int(candidates.sum())]]


def _evidence(cells: Cells, part: Part, rounds: Indices, node: int, rail: int | slice) -> Evidence:
    share = float(np.nanmedian(cells.share[rounds, node, rail]))
    wrong = bool(cells.wrong[rounds, node, rail].any())
    partners = cells.partner[rounds, node]
    # A partner that was good with no one confirms nothing: it may be the one at fault.
    chosen = {
        int(partner)
        for at, partner in zip(rounds, partners, strict=True)
        if cells.chosen[at, node] and cells.good[:, partner, rail].any()
    }
    return Evidence(
        part,
        symptom_of(share, wrong),
        share,
        tuple(cells.numbers[at] for at in rounds),
        tuple(map(int, partners)),
        len(chosen),
        (node,),
    )


def symptom_of(share: float, wrong: bool) -> Symptom:
    """Corrupt before dead before slow."""
    return Symptom.CORRUPTS if wrong else Symptom.DEAD if share == 0.0 else Symptom.SLOW


def _gpu_at_fault(cells: Cells, node: int, rail: int) -> bool:
    """Whether the rail's GPU is low over the next rail's NIC too, and the GPU before it good over this rail's NIC."""
    before = (rail - 1) % len(cells.topology.rails)
    own, other = [], []
    for level in cells.levels:
        if level.crossed is None:
            continue
        pairs = np.flatnonzero((level.a == node) | (level.b == node))
        own += [value < level.threshold for value in level.crossed[pairs, rail] if not np.isnan(value)]
        other += [value < level.threshold for value in level.crossed[pairs, before] if not np.isnan(value)]
    return bool(own) and all(own) and bool(other) and not any(other)
