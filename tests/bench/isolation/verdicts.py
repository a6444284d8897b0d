"""Verdicts on the members of small blocks, as they are run by default: does a bad node pass, does a healthy one fail?

Each world is planned, measured, decoded and judged as a block is, with everything but its rounds healthy. Where leaves
are not known to the judge, the nodes are on leaves of four, and a ninth node has one of its own. A bad node *passes*
where the gate would admit it: with PASS or WARN. Slow leaves and uplinks are no node's fault.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from muster_criteria.cluster.fabric.decoding.parts import OF_THE_NODE
from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.observed import Place, Port
from muster_criteria.cluster.fabric.planner import next_round
from muster_criteria.cluster.fabric.rounds import RoundResult
from muster_criteria.cluster.fabric.topology import Topology, from_groups, unknown
from muster_criteria.cluster.judge import judge_block
from muster_criteria.cluster.model import MemberResult
from muster_criteria.model import Verdict
from tests.bench.isolation.world import Counts, World
from tests.muster_criteria.cluster_results import PROGRAMME, block, members

UNKNOWN = {f"{nodes}, leaves unknown": nodes for nodes in (8, 9, 12, 16, 32)}
KNOWN = {"8 + 1": (8, 1), "12 + 4": (12, 4), "6 leaves of 2": (2,) * 6, "12 leaves of 1": (1,) * 12}
RAILS, BETWEEN = (1, 8), (1.0, 0.5)
DEAD, CORRUPT = "dead rail of two nodes", "corrupt rail of two nodes"
NOTHING = "nothing"
FAULTS = {
    NOTHING: Counts(),
    "bad node": Counts(nodes=1),
    "two bad nodes": Counts(nodes=2),
    "bad NIC": Counts(nics=1),
    "slow uplink": Counts(leaves=1),
    "slow leaf": Counts(switches=1),
    DEAD: Counts(dead=2),
    CORRUPT: Counts(corrupt=2),
}
CLEAR = "nothing, leaves known or links whole"
OPEN = "nothing, leaves unknown and links halved"
"""Without a fault. Links may be slow by design: where leaves are not known either, no rate is usual, and most such
blocks are a person's."""
_ADMITTED = (Verdict.PASS, Verdict.WARN)


@dataclasses.dataclass
class Tally:
    """Nodes, and how many of them got a verdict that is wrong, or a right one: ``healthy_passed``."""

    bad: int = 0
    bad_passed: int = 0
    healthy: int = 0
    healthy_failed: int = 0
    healthy_passed: int = 0

    def add(self, bad: bool, verdict: Verdict) -> None:
        """Counts a node."""
        if bad:
            self.bad += 1
            self.bad_passed += verdict in _ADMITTED
        else:
            self.healthy += 1
            self.healthy_failed += verdict is Verdict.FAIL
            self.healthy_passed += verdict in _ADMITTED


def worlds(faults: Iterable[str], seeds: Iterable[int]) -> Iterator[tuple[str, str, World, Topology, int]]:
    """(shape, fault, world, what is known of its topology, seed) of every combination."""
    shapes = {**{name: (*(4,) * (nodes // 4), *(1,) * (nodes % 4)) for name, nodes in UNKNOWN.items()}, **KNOWN}
    for shape, rails, fault, between, seed in itertools.product(shapes, RAILS, faults, BETWEEN, seeds):
        leaves = [leaf for leaf, nodes in enumerate(shapes[shape]) for _ in range(nodes)]
        true = from_groups({f"n{at}": leaf for at, leaf in enumerate(leaves)}, [f"rail{rail}" for rail in range(rails)])
        known = true if shape in KNOWN else unknown(true.nodes, true.rails)
        yield shape, fault, World(true, FAULTS[fault], seed, between=between), known, seed


def judged(world: World, topology: Topology, seed: int) -> Mapping[str, Verdict]:
    """The verdict on each member of a block whose rounds are measured in this world."""
    results: list[RoundResult] = []
    while (plan := next_round(topology, results, seed)) is not None:
        results.append(world.measure(plan))
    places = {name: Place(name, tuple(Port(name) for _ in topology.rails)) for name in topology.nodes}
    found = judge_block(_members(len(topology.nodes)), PROGRAMME, Rounds(topology, places, tuple(results)))
    return {name: each.verdict for name, each in found.members.items()}


@functools.cache
def _members(count: int) -> Sequence[MemberResult]:
    """Healthy in all but their rounds, and not simulated, since no rate of simulated nodes is judged."""
    found = []
    for each in members(block(count)):
        assert each.result is not None
        found.append(dataclasses.replace(each, result=each.result.model_copy(update={"simulated": False})))
    return found


@dataclasses.dataclass(frozen=True)
class Tallies:
    """By fault, by shape of the block, and of blocks where nothing is at fault: ``CLEAR`` and ``OPEN``."""

    by_fault: dict[str, Tally] = dataclasses.field(default_factory=lambda: defaultdict(Tally))
    by_shape: dict[str, Tally] = dataclasses.field(default_factory=lambda: defaultdict(Tally))
    sound: dict[str, Tally] = dataclasses.field(default_factory=lambda: defaultdict(Tally))

    @property
    def rows(self) -> dict[str, Tally]:
        """All by their names."""
        return self.by_fault | self.by_shape | self.sound


def tallies(seeds: int, faults: Iterable[str] = tuple(FAULTS)) -> Tallies:
    """The verdicts of every combination."""
    found = Tallies()
    for shape, fault, world, known, seed in worlds(faults, range(seeds)):
        bad = {world.topology.nodes[part.a] for part in world.planted if part.kind in OF_THE_NODE}
        for name, verdict in judged(world, known, seed).items():
            found.by_fault[fault].add(name in bad, verdict)
            found.by_shape[shape].add(name in bad, verdict)
            if fault == NOTHING:
                found.sound[CLEAR if shape in KNOWN or world.between == 1.0 else OPEN].add(name in bad, verdict)
    return found


def total(parts: Iterable[Tally]) -> Tally:
    """All of them together."""
    return Tally(*(sum(column) for column in zip(*map(dataclasses.astuple, parts), strict=True)))
