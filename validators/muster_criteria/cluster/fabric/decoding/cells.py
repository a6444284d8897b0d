"""All rounds laid out by node: the working arrays of the decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from muster_criteria.cluster.fabric.decoding.levels import Level
from muster_criteria.cluster.fabric.rounds import Figures, Flags
from muster_criteria.cluster.fabric.topology import Indices, Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """Every cell (round, node, rail) as seen from its node, so each pair's cell is there twice.

    ``partner``: shape (rounds, nodes), -1 for a node without a partner; ``chosen``: the pair was chosen to confirm
    something and is no reference. ``share``, ``low``, ``good``, ``wrong``: shape (rounds, nodes, rails). ``bare``: as
    in ``Level``; if nothing arrived in a bare cell, it is low, and the rail's other bare cells are good. ``explained``:
    low because of a part already found. The decoder changes it, and marks cells as good that reach all that a slow
    switch leaves to its nodes.
    """

    topology: Topology
    levels: tuple[Level, ...]
    partner: Indices
    chosen: Flags
    share: Figures
    low: Flags
    good: Flags
    wrong: Flags
    bare: Flags
    explained: Flags

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the rounds."""
        return tuple(level.number for level in self.levels)

    @property
    def confirms(self) -> Flags:
        """Which rounds are rounds of confirmation, shape (rounds,)."""
        return np.array([level.confirms for level in self.levels], dtype=bool)

    def open_low(self) -> Flags:
        """Low and not explained."""
        return self.low & ~self.explained

    def open_good(self) -> Flags:
        """Good and not explained. A cell that an accepted part should have made low says nothing about other parts."""
        return self.good & ~self.explained

    def cross(self) -> Flags:
        """Which nodes had a partner on another leaf, shape (rounds, nodes)."""
        leaf = self.topology.leaf_array
        other: Flags = leaf[self.partner] != leaf[None, :]
        return other & (self.partner >= 0)

    def explain(self, rounds: Indices, nodes: Indices, rail: int | slice) -> None:
        """Marks the cells of these nodes in these rounds, and the same cells as seen from the partners."""
        partners = self.partner[rounds, nodes]
        self.explained[rounds, nodes, rail] = True
        met = partners >= 0
        self.explained[rounds[met], partners[met], rail] = True


def laid_out(topology: Topology, levels: Sequence[Level]) -> Cells:
    """The cells of these rounds."""
    shape = (len(levels), len(topology.nodes), len(topology.rails))
    partner = np.full(shape[:2], -1, dtype=np.intp)
    share, chosen = np.full(shape, np.nan), np.zeros(shape[:2], dtype=bool)
    wrong, low, good, bare = (np.zeros(shape, dtype=bool) for _ in range(4))
    for at, level in enumerate(levels):
        for own, other in ((level.a, level.b), (level.b, level.a)):
            partner[at, own], chosen[at, own] = other, level.confirms & level.chosen
            share[at, own], wrong[at, own] = level.share, level.wrong
            low[at, own], good[at, own], bare[at, own] = level.low, level.good, level.bare
    good |= bare & ~low & (bare & low).any(axis=(0, 1))
    return Cells(topology, tuple(levels), partner, chosen, share, low, good, wrong, bare, np.zeros(shape, dtype=bool))
