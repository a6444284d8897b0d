"""The next round: the three of the screening, then rounds of confirmation until no suspect is left.

In a round of confirmation each suspect meets a partner known to be good, a new one in each round and on a new leaf if
possible; a suspected path is measured between two other nodes of its leaves. Pairs of good nodes run with them as
references: as many between leaves as within. A small fleet has too few nodes for both, so all pairs of a round are of
one kind there.
"""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from muster_criteria.cluster.fabric.decoding.decode import decode
from muster_criteria.cluster.fabric.decoding.levels import OTHERS_MIN
from muster_criteria.cluster.fabric.decoding.parts import OF_THE_NODE, Diagnosis, Evidence, PartKind
from muster_criteria.cluster.fabric.pairing import across, ordered, same_leaf, screening
from muster_criteria.cluster.fabric.rounds import Kind, Round, RoundResult
from muster_criteria.cluster.fabric.topology import Topology
from muster_criteria.stages import ROUNDS_MAX

VARIANTS = 8
"""Flows over which a rail is measured in a round of confirmation. If a tenth of the flows are in a hot spot, seven or
more of eight are in one in one cell of a million."""
REFERENCES = 2 * (OTHERS_MIN + 1)
"""Pairs of good nodes in a round of confirmation, at most half of its pairs; in a small fleet, what suspects leave."""


def next_round(
    topology: Topology,
    results: Sequence[RoundResult],
    seed: int,
    rounds_max: int = ROUNDS_MAX,
    variants: int = VARIANTS,
    gone: Collection[int] = (),
    short: Collection[int] = (),
    across: Collection[int] = (),
) -> Round | None:
    """The next round; None if nothing is left to find out, or after ``rounds_max`` rounds.

    ``variants``: flows over which a round of confirmation measures each rail. ``gone``: nodes that can be in no further
    round. ``short``: nodes with a pair that was not fully measured, which are measured once more; ``across``: those of
    them that need a partner on another leaf.
    """
    first = screening(topology, seed)
    if len(results) < len(first):
        return _without(topology, first[len(results)], results, frozenset(gone))
    if len(results) >= rounds_max:
        return None
    diagnosis = decode(topology, results)
    if not diagnosis.suspects and not diagnosis.uncovered and not set(short) - set(gone):
        return None
    lacking = frozenset(short) - frozenset(gone)
    return _Confirmation(topology, results, diagnosis, seed, frozenset(gone), lacking).round(variants, across)


def _without(topology: Topology, plan: Round, results: Sequence[RoundResult], gone: frozenset[int]) -> Round:
    """The round of the screening without the nodes that are gone: nodes without a partner, resting ones too, meet, on
    one leaf if possible. The DAG ends after a round without pairs; this has some if two nodes are left."""
    pairs = [pair for pair in plan.pairs if not gone & set(pair)]
    left = sorted(set(range(len(topology.nodes))) - gone - {node for pair in pairs for node in pair})
    left.sort(key=lambda node: topology.leaf_of[node])
    met = {frozenset(pair) for result in results for pair in result.round.pairs}
    while left:
        node = left.pop()
        fresh = [other for other in reversed(left) if frozenset((node, other)) not in met]
        if fresh or left:
            other = fresh[0] if fresh else left[-1]
            left.remove(other)
            pairs.append(ordered(node, other))
    return dataclasses.replace(plan, pairs=tuple(pairs))


class _Confirmation:
    """One round of confirmation: nodes and their rails first, then paths, and paths that faults covered."""

    def __init__(
        self, topology: Topology, results: Sequence[RoundResult], diagnosis: Diagnosis, seed: int,
        gone: frozenset[int], short: frozenset[int],
    ) -> None:  # fmt: skip
        self.gone, self.short = gone, short
        self.topology, self.results, self.diagnosis = topology, results, diagnosis
        self.draw = random.Random(f"{seed}/{len(results)}")
        self.pairs: list[tuple[int, int]] = []
        self.used: set[int] = set()
        self.met: dict[int, list[int]] = defaultdict(list)
        self.chosen: dict[int, list[int]] = defaultdict(list)
        for result in results:
            planned = len(result.round.pairs) - result.round.references
            for number, (a, b) in enumerate(result.round.pairs):
                for own, other in ((a, b), (b, a)):
                    self.met[own].append(other)
                    if result.round.kind is Kind.CONFIRM and number < planned:
                        self.chosen[own].append(other)
        every = (*diagnosis.named, *diagnosis.suspects)
        bad = {each.part.a for each in every if each.part.kind in OF_THE_NODE}
        bad |= {node for each in every if each.part.kind is PartKind.SHARED for node in each.touches}
        bad |= gone
        self.good = [
            # Nodes whose own pairs broke come last: they may be the cause.
            sorted(self.draw.sample(members, len(members)), key=short.__contains__)
            for members in (tuple(n for n in nodes if n not in bad and n in self.met) for nodes in topology.members)
        ]
        self.slow_leaves = {each.part.a for each in every if each.part.kind in (PartKind.UPLINK, PartKind.LEAF)}
        places = sum(map(len, self.good)) + len(bad - gone)
        kept = min(REFERENCES, places // 4)
        # Too few references for a comparison: suspects are compared with each other too, and go first.
        self.room = places // 2 - (kept if kept >= OTHERS_MIN else 0)
        self.kinds = _kinds(topology, frozenset(self.met) - gone)
        """Which pairs can be compared with enough others of this round: within leaves (False), between them (True)."""
        self.one_kind = kept < REFERENCES

    def round(self, variants: int, across: Collection[int]) -> Round | None:
        """The round; None if no pair could be made for any suspect or any node that was measured too seldom."""
        suspects = self.diagnosis.suspects
        for node in self._suspected_nodes(suspects):
            self._with_good(node)
        paths = [each.part for each in suspects if each.part.kind is PartKind.PATH]
        for part in paths:
            if part.between_nodes:
                self._pair(part.a, part.b)
        for one, other in dict.fromkeys((part.a, part.b) for part in paths if not part.between_nodes):
            self._between(one, other)
        for one, other in dict.fromkeys((one, other) for one, other, _ in self.diagnosis.uncovered):
            self._between(one, other)
        for node in sorted(self.short):
            self._with_good(node, across=node in across)
        if not self.pairs:
            return None
        references = self._references()
        return Round(len(self.results) + 1, Kind.CONFIRM, (*self.pairs, *references), variants, len(references))

    def _suspected_nodes(self, suspects: Iterable[Evidence]) -> list[int]:
        """Each once; those that are nearest to a decision first."""
        nodes = {each.part.a: each.confirmed for each in suspects if each.part.kind in OF_THE_NODE}
        return sorted(nodes.keys() - self.gone, key=lambda node: (-nodes[node], node))

    def _pair(self, a: int, b: int, any_kind: bool = False) -> bool:
        between = self.topology.leaf_of[a] != self.topology.leaf_of[b]
        if self.room <= 0 or a == b or {a, b} & (self.used | self.gone):
            return False
        if not any_kind and between not in self.kinds:
            return False
        if self.one_kind and between in self.kinds:
            self.kinds = frozenset({between})
        self.pairs.append(ordered(a, b))
        self.used |= {a, b}
        self.room -= 1
        return True

    def _with_good(self, node: int, across: bool = False) -> None:
        """Pairs a suspect with a good node that it was not confirmed with: of its own leaf first, then of another.

        ``across``: only of another leaf; the node only has to be measured, so it needs no pairs to compare with.
        """
        own = self.topology.leaf_of[node]
        seen = {self.topology.leaf_of[other] for other in self.chosen[node]}
        leaves = [leaf for leaf in self._leaves(own, own not in seen, seen) if not across or leaf != own]
        wanted = [(known, leaf) for known in (self.met[node], self.chosen[node]) for leaf in leaves]
        if own in self.slow_leaves:
            # Behind a slow uplink only partners on its own leaf show how the node is, even if it met them before.
            wanted.sort(key=lambda each: each[1] != own)
        for known, leaf in wanted:
            for other in self.good[leaf]:
                if other not in known and self._pair(node, other, across):
                    return

    def _leaves(self, own: int, own_first: bool, seen: set[int]) -> Iterator[int]:
        """The leaves to take a partner from: those without a finding and without an earlier partner first."""
        if own_first:
            yield own
        begin = self.draw.randrange(len(self.good))
        others = [leaf for leaf in (*range(begin, len(self.good)), *range(begin)) if leaf != own]
        poor = [leaf for leaf in others if leaf in seen or leaf in self.slow_leaves]
        yield from (leaf for leaf in others if leaf not in seen and leaf not in self.slow_leaves)
        yield from poor
        if not own_first:
            yield own

    def _between(self, one: int, other: int) -> None:
        """Pairs two good nodes of two leaves that have not met, so that only the path is the same."""
        free = [[node for node in self.good[leaf] if node not in self.used] for leaf in (one, other)]
        leaf = self.topology.leaf_of
        crossed = {
            node
            for side, beyond in zip(free, (other, one), strict=True)
            for node in side
            if any(leaf[met] == beyond for met in self.met[node])
        }
        for fresh in (True, False):
            for a in free[0]:
                for b in free[1]:
                    new = not {a, b} & crossed if fresh else b not in self.met[a]
                    if new and self._pair(a, b):
                        return

    def _references(self) -> list[tuple[int, int]]:
        """Pairs of good nodes, of each kind that the other pairs have; between leaves if those within run out."""
        leaf = self.topology.leaf_of
        kinds = {leaf[a] != leaf[b] for a, b in self.pairs}
        free = [[node for node in nodes if node not in self.used] for nodes in self.good]
        order = self.draw.sample(range(len(free)), len(free))
        most = REFERENCES // len(kinds) if True in kinds else 0
        found = across([free[at] for at in order if at not in self.slow_leaves], most)
        found += across([free[at] for at in order], most - len(found))
        if False in kinds:
            within = same_leaf(free)
            self.draw.shuffle(within)
            found += within[: REFERENCES - len(found)]
        return found


def _kinds(topology: Topology, nodes: Collection[int]) -> frozenset[bool]:
    """Kinds of pairs that are numerous enough for a comparison: within leaves (False), between them (True); both if
    neither is."""
    sizes = [sum(node in nodes for node in members) for members in topology.members]
    within, between = sum(size // 2 for size in sizes), min(sum(sizes) // 2, sum(sizes) - max(sizes))
    enough = frozenset(kind for kind, most in ((False, within), (True, between)) if most > OTHERS_MIN)
    return enough or frozenset({False, True})
