"""What is low only with all rails at once: whose part it is. Such a node does not fail, and does not pass."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from muster_criteria.cluster.fabric.decoding.decode import decode
from muster_criteria.cluster.fabric.decoding.parts import PartKind, Symptom
from muster_criteria.cluster.fabric.judging.found import FabricJudgement
from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.judging.verdict import judge_fabric
from muster_criteria.cluster.fabric.pairing import screening
from muster_criteria.cluster.fabric.planner import next_round
from muster_criteria.cluster.fabric.rounds import RoundResult
from muster_criteria.cluster.fabric.topology import Topology
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.model import Lack, Severity
from tests.muster_criteria.cluster.fabric.worlds import Small, fabric, flat, places

NODE = 5


def judged(topology: Topology, results: list[RoundResult]) -> tuple[FabricJudgement, BlockFindings]:
    block = BlockFindings()
    return judge_fabric(Rounds(topology, places(topology), tuple(results)), block), block


@pytest.mark.parametrize("topology", [fabric(4, 4), flat(16)])
@pytest.mark.parametrize("share", [0.5, 0.915, 0.0])
@pytest.mark.parametrize(("rails", "kind"), [((2,), PartKind.NIC), ((1, 3), PartKind.NODE)])
def test_rails_that_are_low_only_together_are_a_part_of_their_node_which_neither_fails_nor_passes(
    topology: Topology, share: float, rails: tuple[int, ...], kind: PartKind
) -> None:
    world, name = Small(topology, {}), topology.nodes[NODE]
    world.together_on = {(NODE, rail): share for rail in rails}
    found, block = judged(topology, world.isolate()[0])
    (part,) = found.parts
    assert (part.kind, part.node, part.symptom, part.confirmed) == (kind, name, Symptom.TOGETHER, True)
    assert part.share < part.least
    assert {node: [each.severity for each in found] for node, found in block.findings.items()} == {
        name: [Severity.WARNING]
    }
    assert {node: [gap.code for gap in gaps] for node, gaps in block.suspected.items()} == {name: [Lack.UNDECIDED]}


def test_a_node_of_which_nothing_arrives_with_all_rails_at_once_is_no_congestion() -> None:
    world = Small(fabric(4, 4), {})
    world.together = {NODE: 0.0}
    found, block = judged(world.topology, world.isolate()[0])
    assert [(each.kind, each.symptom) for each in found.parts] == [(PartKind.NODE, Symptom.TOGETHER)]
    assert set(block.suspected) == {world.topology.nodes[NODE]}


def test_a_pair_over_which_nothing_went_once_with_all_rails_is_held() -> None:
    topology = fabric(4, 4)
    pair, results = screening(topology, 0)[0].pairs[0], list[RoundResult]()
    while (plan := next_round(topology, results, 0)) is not None:
        world = Small(topology, {})
        world.together_on = {} if results else {(pair[0], 1): 0.0}
        results.append(world.measure(plan))
    found, block = judged(topology, results)
    assert found.parts == ()
    assert {name: [gap.code for gap in gaps] for name, gaps in block.suspected.items()} == {
        topology.nodes[node]: [Lack.UNDECIDED] for node in pair
    }


def test_a_rail_that_is_slower_for_all_with_all_rails_at_once_is_no_parts_fault() -> None:
    """Such as one that shares a PCIe switch by design."""
    world = Small(fabric(4, 4), {})
    world.together_on = {(node, 2): 0.6 for node in range(16)}
    found, block = judged(world.topology, world.isolate()[0])
    assert (found.parts, block.findings, block.suspected) == ((), {}, {})


@pytest.mark.parametrize("share", [0.6, 0.0])
def test_a_leaf_that_is_low_with_all_rails_at_once_costs_only_nodes_something_over_which_nothing_arrives(
    share: float,
) -> None:
    world = Small(fabric(4, 4), {})
    world.together_on = {(node, 2): share for node in world.topology.members[1]}
    found, block = judged(world.topology, world.isolate()[0])
    assert [(each.kind, each.symptom) for each in found.parts] == [(PartKind.LEAF, Symptom.TOGETHER)]
    held = set() if share else {world.topology.nodes[node] for node in world.topology.members[1]}
    assert (block.findings, set(block.suspected)) == ({}, held)


@pytest.mark.parametrize("topology", [fabric(8, 2), fabric(5, 3), fabric(4, 4)])
def test_congestion_at_a_leaf_is_no_parts_fault_however_small_the_leaf_is(topology: Topology) -> None:
    world = Small(topology, {})
    world.together = dict.fromkeys(topology.members[1], 0.5)
    found, block = judged(topology, world.isolate()[0])
    small = len(topology.members[1]) < 4
    assert {each.kind for each in found.parts} == {PartKind.CONGESTION if small else PartKind.LEAF}
    assert (block.findings, block.suspected) == ({}, {})


def scattered(result: RoundResult, seed: int) -> RoundResult:
    assert result.together is not None
    draw = np.random.default_rng(seed)
    noise = np.clip(1.0 + 0.3 * draw.standard_normal(result.wrong.shape), 0.1, None)
    return dataclasses.replace(result, together=result.together * noise)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_one_round_that_scatters_hides_no_rail_that_the_others_show(number: int) -> None:
    world, results = Small(fabric(4, 4), {}), list[RoundResult]()
    world.together_on = {(NODE, 1): 0.3}
    while (plan := next_round(world.topology, results, 0)) is not None:
        result = world.measure(plan)
        results.append(scattered(result, 0) if plan.number == number else result)
    found, block = judged(world.topology, results)
    name = world.topology.nodes[NODE]
    assert [(each.kind, each.node, each.confirmed) for each in found.parts] == [(PartKind.NIC, name, True)]
    assert (set(block.suspected), found.notes) == ({name}, ())


@pytest.mark.parametrize("seed", range(5))
def test_rates_that_scatter_with_all_rails_at_once_show_nothing_and_are_noted(seed: int) -> None:
    """As one process shares its CPUs among many streams of TCP."""
    world, results = Small(fabric(4, 4), {}), list[RoundResult]()
    while (plan := next_round(world.topology, results, 0)) is not None:
        results.append(scattered(world.measure(plan), 10 * seed + plan.number))
    found, block = judged(world.topology, results)
    assert (found.parts, block.findings, block.suspected) == ((), {}, {})
    assert decode(world.topology, results).not_together == {(node, rail) for node in range(16) for rail in range(4)}
    assert len(found.notes) == 1
