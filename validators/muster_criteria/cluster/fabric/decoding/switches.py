"""Leaf switches and their uplinks: one rail that is low for most nodes of a leaf."""

from __future__ import annotations

import numpy as np

from muster_criteria.cluster.fabric.decoding.cells import Cells
from muster_criteria.cluster.fabric.decoding.levels import EFFECT_MIN
from muster_criteria.cluster.fabric.decoding.nodes import MOST, NODES_MIN, symptom_of
from muster_criteria.cluster.fabric.decoding.parts import Evidence, Part, PartKind
from muster_criteria.cluster.fabric.rounds import Figures, Flags
from muster_criteria.cluster.fabric.topology import Indices

UPLINK_NODES_MIN = 2
"""Fewest nodes, good within their leaf and low to others, that show a fault of the uplinks: one would show a path."""


def low_switches(cells: Cells) -> list[Evidence]:
    """Leaves and uplinks at fault, the surest first. Where leaves are not known there are none."""
    if not cells.topology.known:
        return []
    found: list[Evidence] = []
    unfound = np.ones((len(cells.topology.leaves), len(cells.topology.rails)))
    while True:
        leaf_score, uplink_score = _scores(cells)
        # What stays low behind a switch that was found is not the switch.
        score = np.maximum(leaf_score, uplink_score) * unfound
        if not score.size or score.max() <= 0.0:
            return found
        # Cells of different rails do not explain each other, so one of each rail can be accepted at a time.
        for rail in map(int, np.flatnonzero(score.max(axis=0) > 0.0)):
            leaf = int(np.argmax(score[:, rail]))
            kind = PartKind.LEAF if leaf_score[leaf, rail] >= uplink_score[leaf, rail] else PartKind.UPLINK
            found.append(_accept(cells, kind, leaf, rail))
            unfound[leaf, rail] = 0.0


def _scores(cells: Cells) -> tuple[Figures, Figures]:
    """Number of cells that speak against each leaf switch and each leaf's uplinks, 0 if they are not at fault: (leaves,
    rails). Within a leaf, nodes are counted instead of cells: a node with a bad rail is measured again and again within
    its leaf, and its cells would outvote the others'."""
    leaf, leaves, rails = cells.topology.leaf_array, len(cells.topology.leaves), len(cells.topology.rails)
    low, judged = cells.open_low(), cells.open_low() | cells.open_good()
    cross = cells.cross()[:, :, None]

    def by_leaf(each_node: Flags | Indices) -> Figures:
        """Number of cells, or nodes, for each (leaf, rail), from those of each (node, rail)."""
        return np.stack([np.bincount(leaf, column, leaves) for column in each_node.T], axis=1)

    met = np.zeros((leaves, leaves, rails), dtype=bool)
    rounds, nodes, at = np.nonzero(judged & cross)
    met[leaf[nodes], leaf[cells.partner[rounds, nodes]], at] = True
    low_in, low_out = by_leaf((low & ~cross).sum(axis=0)), by_leaf((low & cross).sum(axis=0))
    nodes_in, nodes_out = by_leaf(np.any(judged & ~cross, axis=0)), by_leaf(np.any(judged & cross, axis=0))
    good_in = by_leaf(np.any(judged & ~low & ~cross, axis=0))
    beyond = low_out >= MOST * by_leaf((judged & cross).sum(axis=0))
    of_leaf = beyond & (nodes_in - good_in >= MOST * nodes_in) & (nodes_in >= NODES_MIN)
    # Low to a single other leaf, it may be the path between the two, or the other's uplinks.
    wide = (nodes_out >= UPLINK_NODES_MIN) & (met.sum(axis=1) >= 2)
    of_uplinks = beyond & wide & (nodes_in > 0) & (2 * good_in >= nodes_in)
    return np.where(of_leaf, low_in + low_out, 0.0), np.where(of_uplinks, low_out, 0.0)


def _accept(cells: Cells, kind: PartKind, leaf: int, rail: int) -> Evidence:
    """Evidence of the part; marks the cells that the part explains (``_explain``)."""
    here = (cells.topology.leaf_array == leaf)[None, :]
    over = here & (cells.partner >= 0) & (cells.cross() if kind is PartKind.UPLINK else True)
    low = over & cells.open_low()[:, :, rail]
    rounds, nodes = np.nonzero(low)
    # The median of nodes, as in ``_scores``.
    of_nodes = np.where(low, cells.share[:, :, rail], np.nan)[:, low.any(axis=0)]
    share = float(np.median(np.nanmedian(of_nodes, axis=0)))
    # A node's rail may also corrupt below a slow switch, or be dead below a switch that corrupts.
    wrong = bool(np.median(cells.wrong[rounds, nodes, rail]) == 1.0)
    numbers = tuple(cells.numbers[at] for at in sorted(set(map(int, rounds))))
    partners = tuple(sorted(set(map(int, cells.partner[rounds, nodes]))))
    confirmed = len({int(at) for at in rounds if cells.confirms[at]})
    _explain(cells, over, low, rail)
    part = Part(kind, leaf, rail=rail)
    return Evidence(
        part, symptom_of(share, wrong), share, numbers, partners, confirmed, cells.topology.members[leaf]
    )  # fmt: skip


def _explain(cells: Cells, over: Flags, low: Flags, rail: int) -> None:
    """Marks the cells ``over`` a switch as explained, and those that reached what it leaves them as good. ``low``:
    which of them are low. The own cells of a node that never reached it stay open: something else is slower."""
    share, cross = cells.share[:, :, rail], cells.cross()
    reached = np.zeros_like(over)
    for kind in (cross, ~cross):
        if (low & kind).any():
            # The median of nodes, as in ``_scores``: a bad port is measured again and again.
            best = np.fmax.reduce(np.where(low & kind, share, np.nan), axis=0)
            with np.errstate(invalid="ignore"):
                reached |= over & kind & (share >= (1.0 - EFFECT_MIN) * np.nanmedian(best))
    worse = over & ~(reached | cells.good[:, :, rail]).any(axis=0) & ~cells.explained[:, :, rail]
    rounds, nodes = np.nonzero(over)
    cells.explain(rounds, nodes, rail)
    cells.explained[:, :, rail] &= ~worse
    cells.good[:, :, rail] |= reached & (share > 0.0)
