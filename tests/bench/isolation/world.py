"""A simulated fabric with known faults: what each pair of nodes measures in a round. It knows nothing of the decoder.

A cell (pair, rail, flow) has the lowest level of the parts that it goes over, with relative noise. A tenth of the cells
lie in a hot spot besides, each drawn again, and lose 5 to 50 %. Parts at fault lose 10 to 50 %; a dead rail carries
nothing, and a corrupt one wrong bytes at the usual rate. All rails at once are as each alone, with other hot spots.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np

from muster_criteria.cluster.fabric.decoding.parts import Part, PartKind
from muster_criteria.cluster.fabric.rounds import Figures, Round, RoundResult
from muster_criteria.cluster.fabric.topology import Indices, Topology, from_groups
from muster_node.cluster.pair.measure import TOGETHER_VARIANTS

USUAL = 48.0
"""GB/s of a healthy rail; only ratios matter."""
NOISE = 0.02
HOT = 0.10
EFFECTS = (0.10, 0.50)
HOT_LOSS = (0.05, 0.50)
NODES_A_LEAF = 32
LEAVES_A_POD = 8


@dataclasses.dataclass(frozen=True)
class Counts:
    """How many parts of each kind are at fault. ``leaves``: uplinks of a leaf; ``switches``: leaves as a whole, each on
    one rail. ``dead``, ``corrupt``: neighbouring nodes with the same rail dead, or corrupt."""

    nodes: int = 0
    nics: int = 0
    paths: int = 0
    leaves: int = 0
    switches: int = 0
    dead: int = 0
    corrupt: int = 0


def fabric(nodes: int, rails: int, a_leaf: int = NODES_A_LEAF, a_pod: int = LEAVES_A_POD) -> Topology:
    """So many nodes and rails, ``a_leaf`` nodes on each leaf, ``a_pod`` leaves in each pod."""
    leaf = {f"n{node:05d}": f"leaf{node // a_leaf:04d}" for node in range(nodes)}
    pod = {name: f"pod{int(name[4:]) // a_pod:03d}" for name in leaf.values()}
    return from_groups(leaf, [f"rail{rail}" for rail in range(rails)], dict(pod))


class World:
    """One fabric with its faults: ``planted`` is part → share of the usual rate. ``between``: what pairs between leaves
    reach by design, as a share of those within."""

    def __init__(
        self, topology: Topology, counts: Counts, seed: int, *, hot: float = HOT, between: float = 1.0
    ) -> None:
        self.topology, self.hot, self.between = topology, hot, between
        self._random, self._together = np.random.default_rng(seed), np.random.default_rng([seed, 1])
        self.planted = planted(topology, counts, random.Random(seed))
        nodes, leaves, rails = len(topology.nodes), len(topology.leaves), len(topology.rails)
        self._own = np.ones((nodes, rails))
        self._uplink = np.ones((leaves, rails))
        self._corrupt = np.zeros((nodes, rails), dtype=bool)
        self._path = {(part.a, part.b, part.rail): share for part, share in self.planted.items() if part.b >= 0}
        for part, share in self.planted.items():
            if part.kind is PartKind.NODE:
                self._own[part.a] = np.minimum(self._own[part.a], share)
            elif part.kind is PartKind.NIC:
                self._own[part.a, part.rail] = share
                self._corrupt[part.a, part.rail] = share == 1.0
            elif part.kind is PartKind.LEAF:
                behind = topology.leaf_array == part.a
                self._own[behind, part.rail] = np.minimum(self._own[behind, part.rail], share)
            elif part.kind is PartKind.UPLINK:
                self._uplink[part.a, part.rail] = share

    def levels(self, a: Indices, b: Indices) -> Figures:
        """The share that each pair reaches on each rail, without noise: shape (pairs, rails)."""
        leaf = self.topology.leaf_array
        one, other = np.minimum(leaf[a], leaf[b]), np.maximum(leaf[a], leaf[b])
        level = np.minimum(self._own[a], self._own[b])
        up = np.minimum(self._uplink[one], self._uplink[other])
        level = np.where((one != other)[:, None], np.minimum(level, up) * self.between, level)
        for (first, second, rail), share in self._path.items():
            over = (one == first) & (other == second)
            level[over, rail] = np.minimum(level[over, rail], share * self.between)
        return level

    def rates(self, a: Indices, b: Indices, variants: int = 1, together: bool = False) -> Figures:
        """Measured rates in GB/s, shape (pairs, rails, variants)."""
        draw = self._together if together else self._random
        level = np.repeat(self.levels(a, b)[:, :, None], variants, axis=2)
        level *= 1.0 + NOISE * draw.standard_normal(level.shape)
        hot = draw.random(level.shape) < self.hot
        loss = draw.uniform(*HOT_LOSS, level.shape)
        return USUAL * np.where(hot, level * (1.0 - loss), level)

    def measure(self, plan: Round) -> RoundResult:
        """What a round would have returned."""
        pairs = np.array(plan.pairs, dtype=np.intp).reshape(-1, 2)
        ends = pairs[:, 0], pairs[:, 1]
        wrong = self._corrupt[ends[0]] | self._corrupt[ends[1]]
        at_once = self.rates(*ends, min(plan.variants, TOGETHER_VARIANTS), together=True).max(axis=2)
        together = at_once if len(self.topology.rails) > 1 else None
        return RoundResult(plan, self.rates(*ends, plan.variants), wrong, together)


def planted(topology: Topology, counts: Counts, draw: random.Random) -> dict[Part, float]:
    """Faults of distinct places: no NIC of a bad node, no path over a bad uplink, which would hide them."""
    rails = range(len(topology.rails))
    bad = draw.sample(range(len(topology.nodes)), counts.nodes)
    found = {Part(PartKind.NODE, node): _share(draw) for node in bad}
    sound = [node for node in range(len(topology.nodes)) if node not in set(bad)]
    nics = draw.sample(sound, counts.nics)
    found |= {Part(PartKind.NIC, node, rail=draw.choice(rails)): _share(draw) for node in nics}
    spots = [(leaf, rail) for leaf in range(len(topology.leaves)) for rail in rails]
    ups = draw.sample(spots, counts.leaves)
    found |= {Part(PartKind.UPLINK, leaf, rail=rail): _share(draw) for leaf, rail in ups}
    taken = set(ups)
    while sum(part.kind is PartKind.PATH for part in found) < counts.paths:
        one, other = sorted(draw.sample(range(len(topology.leaves)), 2))
        rail = draw.choice(rails)
        if not {(one, rail), (other, rail)} & taken:
            found[Part(PartKind.PATH, one, other, rail)] = _share(draw)
    switches = draw.sample([spot for spot in spots if spot not in taken], counts.switches)
    found |= {Part(PartKind.LEAF, leaf, rail=rail): _share(draw) for leaf, rail in switches}
    for count, share in ((counts.dead, 0.0), (counts.corrupt, 1.0)):
        if count:
            first, rail = draw.randrange(len(topology.nodes) - count + 1), draw.choice(rails)
            found |= {Part(PartKind.NIC, node, rail=rail): share for node in range(first, first + count)}
    return found


def _share(draw: random.Random) -> float:
    return 1.0 - draw.uniform(*EFFECTS)
