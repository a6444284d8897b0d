"""Other ways to isolate, on the same simulated fabric, as they are described; none of their code is used.

All but the circle schedule test whole nodes: a test of two nodes or a group fails where the slowest of its rails is
below the limit. So they can name nodes only.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

import numpy as np

from muster_criteria.cluster.fabric.decoding.parts import Part, PartKind
from muster_criteria.cluster.fabric.rounds import Figures
from tests.bench.isolation.world import EFFECTS, USUAL, World

LIMIT = 1.0 - EFFECTS[0] / 2
"""A test below this share of the usual rate fails: half of the least effect."""


@dataclasses.dataclass(frozen=True)
class Found:
    """Rounds, tests of pairs or groups, and what was named. ``simulated``: false where only the number is known."""

    rounds: int
    tests: int
    named: frozenset[Part] = frozenset()
    simulated: bool = True


CIRCLE_MAX = 1024
"""Every pair of more nodes does not fit into memory here."""


def circle(world: World) -> Found:
    """Every pair of nodes in N − 1 rounds; parts by the medians of all their cells."""
    topology, count = world.topology, len(world.topology.nodes)
    if count > CIRCLE_MAX:
        return Found(count - 1, count * (count - 1) // 2, simulated=False)
    share = np.full((count, count, len(topology.rails)), np.nan, dtype=np.float32)
    a, b = np.triu_indices(count, 1)
    rates = world.rates(a, b)[:, :, 0]
    rates /= np.median(rates, axis=0)
    share[a, b] = share[b, a] = rates
    return Found(count - 1, len(a), frozenset(_by_medians(world, share)))


def _by_medians(world: World, share: Figures) -> set[Part]:
    topology, leaf = world.topology, world.topology.leaf_array
    own = np.nanmedian(share, axis=1)
    bad = {int(node) for node in np.flatnonzero((own < LIMIT).sum(axis=1) * 2 > own.shape[1])}
    leaves = len(topology.leaves)
    paths = np.full((leaves, leaves, share.shape[2]), np.nan)
    for one in range(leaves):
        for other in range(leaves):
            block = share[np.ix_(leaf == one, leaf == other)]
            paths[one, other] = np.nanmedian(block.reshape(-1, block.shape[2]), axis=0)
    low = paths < LIMIT
    within = low[np.arange(leaves), np.arange(leaves)]
    ups = {(int(up), int(rail)) for up, rail in np.argwhere((low.mean(axis=1) > 0.75) & ~within)}
    named = {Part(PartKind.NODE, node) for node in bad} | {Part(PartKind.UPLINK, up, rail=rail) for up, rail in ups}
    for node, rail in ((int(n), int(r)) for n, r in np.argwhere(own < LIMIT)):
        # Behind a slow uplink only cells within the leaf show the NIC.
        seen = np.nanmedian(share[node, leaf == leaf[node], rail]) if (int(leaf[node]), rail) in ups else 0.0
        if node not in bad and seen < LIMIT:
            named.add(Part(PartKind.NIC, node, rail=rail))
    for one, other, rail in (map(int, each) for each in np.argwhere(low)):
        if one < other and not {(one, rail), (other, rail)} & ups:
            named.add(Part(PartKind.PATH, one, other, rail))
    return named


def known_good(world: World, seed: int) -> Found:
    """Random pairs, then each node of a failed pair with a random node of a pair that passed."""
    nodes = list(range(len(world.topology.nodes)))
    random.Random(seed).shuffle(nodes)
    pairs = list(zip(nodes[::2], nodes[1::2], strict=False))
    passed = _pairs_pass(world, pairs)
    good = [node for pair, ok in zip(pairs, passed, strict=True) if ok for node in pair]
    suspects = [node for pair, ok in zip(pairs, passed, strict=True) if not ok for node in pair]
    if not good:
        return Found(1, len(pairs))
    turns = math.ceil(len(suspects) / len(good))
    again = [(node, good[at % len(good)]) for at, node in enumerate(suspects)]
    named = {Part(PartKind.NODE, pair[0]) for pair, ok in zip(again, _pairs_pass(world, again), strict=True) if not ok}
    return Found(1 + turns, len(pairs) + len(again), frozenset(named))


def halving(world: World) -> Found:
    """Groups of a leaf, one of each group that passed together, failed groups halved to two nodes, then each suspect
    with a node that is known to be good. (NVIDIA/cluster-readiness-engine, docs/designs ADR-055 and 056.)"""
    rounds, tests = 2, len(world.topology.members) + 1
    good: list[int] = []
    failed: list[Sequence[int]] = []
    for group in world.topology.members:
        if _group_passes(world, group):
            good += group
        else:
            failed.append(group)
    while any(len(group) > 2 for group in failed):
        halves = [half for group in failed for half in (group[: len(group) // 2], group[len(group) // 2 :]) if half]
        # A half of one node is padded with a healthy one.
        tested = [half if len(half) > 1 else (*half, *good[:1]) for half in halves]
        failed = []
        for half, group in zip(halves, tested, strict=True):
            if len(group) < 2 or not _group_passes(world, group):
                failed.append(half)
            else:
                good += half
        rounds, tests = rounds + 1, tests + len(halves)
    suspects = [node for group in failed for node in group]
    if not good or not suspects:
        return Found(rounds, tests)
    again = [(node, good[at % len(good)]) for at, node in enumerate(suspects)]
    named = {Part(PartKind.NODE, pair[0]) for pair, ok in zip(again, _pairs_pass(world, again), strict=True) if not ok}
    return Found(rounds + math.ceil(len(suspects) / len(good)), tests + len(again), frozenset(named))


def _pairs_pass(world: World, pairs: Sequence[tuple[int, int]]) -> list[bool]:
    if not pairs:
        return []
    a, b = (np.array(side, dtype=np.intp) for side in zip(*pairs, strict=True))
    return [bool(ok) for ok in (world.rates(a, b)[:, :, 0] / USUAL).min(axis=1) >= LIMIT]


def _group_passes(world: World, group: Sequence[int]) -> bool:
    """A ring through the group is as fast as its slowest edge on its slowest rail."""
    ring = np.array(group, dtype=np.intp)
    rates = world.rates(ring, np.roll(ring, -1))[:, :, 0]
    return bool((rates / USUAL).min() >= LIMIT)
