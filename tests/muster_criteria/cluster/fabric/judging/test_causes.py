"""What one part excuses of another: cells that went over it, by its symptom, as far as it lowers them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
import pytest

from muster_criteria.cluster.fabric.decoding.parts import Part, PartKind
from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.judging.verdict import judge_fabric
from muster_criteria.cluster.fabric.rounds import Round, RoundResult
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.model import Severity
from tests.muster_criteria.cluster.fabric.worlds import Small, fabric, places

NODE, NAME = 6, "n01-00"
"""The first node of the second leaf of six nodes."""
FABRIC = fabric(6, 6)


class Failing(Small):
    """Nothing, or wrong bytes, went over rail r0 of ``NODE`` in these rounds, and all is well in the others."""

    def __init__(self, faults: Mapping[Part, float], rounds: Collection[int], wrong: bool) -> None:
        super().__init__(FABRIC, faults)
        self.rounds, self.bytes_wrong = rounds, wrong

    def measure(self, plan: Round) -> RoundResult:
        result = super().measure(plan)
        rows = [row for row, pair in enumerate(plan.pairs) if NODE in pair and plan.number in self.rounds]
        result.wrong[rows, 0] |= self.bytes_wrong
        result.alone[rows, 0] *= float(self.bytes_wrong)
        return result


def judged(world: Small, rounds_max: int = 7) -> BlockFindings:
    results, block = world.isolate(rounds_max=rounds_max)[0], BlockFindings()
    judge_fabric(Rounds(world.topology, places(world.topology), tuple(results)), block)
    return block


def failed(block: BlockFindings) -> set[str]:
    return {name for name, found in block.findings.items() if any(each.severity is Severity.CRITICAL for each in found)}


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize(
    "part",
    [
        Part(PartKind.UPLINK, 1, rail=0), Part(PartKind.LEAF, 1, rail=0), Part(PartKind.PATH, 1, 3, rail=0),
        Part(PartKind.UPLINK, 2, rail=0),
    ],
)  # fmt: skip
def test_what_is_slow_explains_no_dead_cell_and_no_wrong_bytes(part: Part, wrong: bool) -> None:
    assert NAME in judged(Failing({part: 0.7}, {1, 2}, wrong)).suspected


@pytest.mark.parametrize("part", [Part(PartKind.UPLINK, 1, rail=0), Part(PartKind.PATH, 1, 3, rail=0)])
@pytest.mark.parametrize("wrong", [False, True])
def test_what_stops_traffic_between_leaves_explains_nothing_within_one(part: Part, wrong: bool) -> None:
    world = Failing({part: float(wrong)}, {1}, wrong)
    world.corrupt = frozenset({part}) if wrong else frozenset()
    (pair,) = (pair for pair in world.isolate()[0][0].round.pairs if NODE in pair)
    assert set(judged(world).suspected) == {FABRIC.nodes[node] for node in pair}


def test_a_dead_part_explains_no_wrong_bytes() -> None:
    world = Failing({Part(PartKind.UPLINK, 1, rail=0): 0.0}, {2}, wrong=True)
    assert NAME in judged(world).suspected


@pytest.mark.parametrize("rounds_max", [3, 7])
def test_a_path_explains_wrong_bytes_once_it_is_confirmed(rounds_max: int) -> None:
    part = Part(PartKind.PATH, 0, 2, rail=1)
    block = judged(Small(FABRIC, {part: 1.0}, frozenset({part})), rounds_max)
    assert bool(block.suspected) is (rounds_max == 3)


class TcpCarries(Failing):
    """Plain TCP goes over all."""

    def measure(self, plan: Round) -> RoundResult:
        result = super().measure(plan)
        return dataclasses.replace(result, host=np.ones_like(result.wrong))


@pytest.mark.parametrize("kind", [Failing, TcpCarries])
@pytest.mark.parametrize(("rounds", "held"), [({1, 2}, 0), ({1}, 1)])
def test_a_slow_port_that_is_dead_at_times_explains_it_where_two_partners_saw_it(
    rounds: set[int], held: int, kind: type[Failing]
) -> None:
    """It carries something at other times, so that TCP over it shows no fault of software."""
    block = judged(kind({Part(PartKind.NIC, NODE, rail=0): 0.5}, rounds, wrong=False))
    assert failed(block) == {NAME}
    assert len(set(block.suspected) - {NAME}) == held


def test_a_dead_leaf_holds_each_node_behind_it_whatever_else_is_at_fault() -> None:
    block = judged(Small(FABRIC, {Part(PartKind.LEAF, 1, rail=0): 0.0, Part(PartKind.NIC, NODE, rail=1): 0.0}))
    assert failed(block) == {NAME}
    assert set(block.suspected) == {FABRIC.nodes[node] for node in FABRIC.members[1]}


class Below(Small):
    """A dead port carries no wrong bytes either."""

    def measure(self, plan: Round) -> RoundResult:
        result = super().measure(plan)
        return dataclasses.replace(result, wrong=result.wrong & (result.alone[:, :, 0] > 0.0))


def test_a_dead_port_below_uplinks_that_corrupt_holds_only_its_partner_within_the_leaf() -> None:
    """Nothing but wrong bytes ever arrived from that one."""
    uplinks = Part(PartKind.UPLINK, 1, rail=2)
    world = Below(FABRIC, {uplinks: 1.0, Part(PartKind.NIC, NODE, rail=2): 0.0}, frozenset({uplinks}))
    (pair,) = (pair for pair in world.isolate()[0][0].round.pairs if NODE in pair)
    block = judged(world)
    assert failed(block) == {NAME}
    assert set(block.suspected) == {FABRIC.nodes[node] for node in pair if node != NODE}


@pytest.mark.parametrize("node", [5, 7])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", [PartKind.LEAF, PartKind.UPLINK])
def test_a_slow_switch_hides_no_worse_port_behind_it(kind: PartKind, share: float, node: int) -> None:
    """One that is dead, slower still, or corrupts; also of the node 5, which meets no other of its leaf at first."""
    port = Part(PartKind.NIC, node, rail=0)
    corrupt = frozenset({port}) if share == 1.0 else frozenset()
    world = Small(fabric(6, 5), {Part(kind, 1, rail=0): 0.5, port: share}, corrupt)
    block = judged(world)
    assert (failed(block), block.suspected) == ({world.topology.nodes[node]}, {})


@pytest.mark.parametrize(("share", "uneven"), [(0.36, True), (0.34, False)])
def test_a_port_that_is_little_worse_than_its_slow_leaf_is_undecided(share: float, uneven: bool) -> None:
    world = Small(FABRIC, {Part(PartKind.LEAF, 1, rail=0): 0.5, Part(PartKind.NIC, NODE, rail=0): share})
    block = judged(world)
    assert (failed(block), set(block.suspected)) == ((set(), {NAME}) if uneven else ({NAME}, set()))


def test_worse_ports_behind_a_slow_leaf_are_no_second_slow_leaf() -> None:
    ports = {Part(PartKind.NIC, node, rail=0): 0.3 for node in (10, 11, 12)}
    world = Small(fabric(6, 10), {Part(PartKind.LEAF, 1, rail=0): 0.5, **ports})
    assert failed(judged(world)) == {world.topology.nodes[part.a] for part in ports}


def test_a_node_behind_a_slow_leaf_is_compared_with_the_others_of_its_kind_of_pair() -> None:
    """Links between leaves carry half by design, so that the leaf lowers those within it more."""

    class Within(Small):
        def measure(self, plan: Round) -> RoundResult:
            result, leaf = super().measure(plan), self.topology.leaf_of
            for row, pair in enumerate(plan.pairs):
                if leaf[pair[0]] != leaf[pair[1]]:
                    result.alone[row] = np.nan if NODE in pair else np.minimum(result.alone[row], 50.0)
            return result

    block = judged(Within(FABRIC, {Part(PartKind.LEAF, 1, rail=0): 0.4}), rounds_max=3)
    assert (block.findings, block.suspected) == ({}, {})
