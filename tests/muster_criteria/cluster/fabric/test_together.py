"""What is low only with all rails at once: whose part it is. Such a node does not fail, and does not pass."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from muster_criteria.cluster.fabric.found import FabricJudgement
from muster_criteria.cluster.fabric.made import Rounds
from muster_criteria.cluster.fabric.pairing import screening
from muster_criteria.cluster.fabric.parts import PartKind, Symptom
from muster_criteria.cluster.fabric.planner import next_round
from muster_criteria.cluster.fabric.rounds import RoundResult
from muster_criteria.cluster.fabric.topology import Topology
from muster_criteria.cluster.fabric.verdict import judge_fabric
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
    assert {who: [each.severity for each in each] for who, each in block.findings.items()} == {name: [Severity.WARNING]}
    assert {who: [gap.code for gap in gaps] for who, gaps in block.suspected.items()} == {name: [Lack.UNDECIDED]}


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


def test_a_rail_that_is_slower_for_all_with_all_rails_at_once_is_nobodys() -> None:
    """Such as one that shares a PCIe switch by design."""
    world = Small(fabric(4, 4), {})
    world.together_on = {(node, 2): 0.6 for node in range(16)}
    found, block = judged(world.topology, world.isolate()[0])
    assert (found.parts, block.findings, block.suspected) == ((), {}, {})


def test_a_leaf_that_is_slow_with_all_rails_at_once_costs_no_node_anything() -> None:
    world = Small(fabric(4, 4), {})
    world.together_on = {(node, 2): 0.6 for node in world.topology.members[1]}
    found, block = judged(world.topology, world.isolate()[0])
    assert [(each.kind, each.symptom) for each in found.parts] == [(PartKind.LEAF, Symptom.TOGETHER)]
    assert (block.findings, block.suspected) == ({}, {})


@pytest.mark.parametrize("seed", range(5))
def test_rates_that_scatter_with_all_rails_at_once_show_nothing(seed: int) -> None:
    """As one process shares its CPUs among many streams of TCP."""
    world, draw = Small(fabric(4, 4), {}), np.random.default_rng(seed)
    results = list[RoundResult]()
    while (plan := next_round(world.topology, results, 0)) is not None:
        result = world.measure(plan)
        scattered = 100.0 * np.clip(1.0 + 0.3 * draw.standard_normal(result.wrong.shape), 0.1, None)
        results.append(dataclasses.replace(result, together=scattered))
    found, block = judged(world.topology, results)
    assert (found.parts, block.findings, block.suspected) == ((), {}, {})
