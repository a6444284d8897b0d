"""Small blocks: what those below eight nodes show, which compare no rates, and what stays undecided."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster_criteria.cluster.fabric.decoding.parts import Part, PartKind
from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.judging.verdict import judge_fabric
from muster_criteria.cluster.fabric.planner import next_round
from muster_criteria.cluster.fabric.rounds import RoundResult
from muster_criteria.cluster.fabric.topology import Topology, from_groups, unknown
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.model import Lack
from tests.muster_criteria.cluster.fabric.worlds import Small, failed, flat, judged, places, unjudged
from tests.support.examples import examples


def uneven(*sizes: int) -> Topology:
    return from_groups({f"n{leaf}-{at}": leaf for leaf, size in enumerate(sizes) for at in range(size)}, ["r0", "r1"])


@pytest.mark.parametrize("corrupt", [False, True])
@pytest.mark.parametrize("kind", [PartKind.NIC, PartKind.NODE])
@pytest.mark.parametrize("topology", [uneven(3), uneven(5), uneven(4, 3), uneven(7, 1)])
def test_a_block_too_small_to_compare_rates_names_the_port_over_which_nothing_right_arrives(
    topology: Topology, kind: PartKind, corrupt: bool
) -> None:
    part = Part(kind, 1, rail=1 if kind is PartKind.NIC else -1)
    world = Small(topology, {part: 1.0 if corrupt else 0.0}, frozenset({part} if corrupt else ()))
    found, block, rounds = judged(world)
    name = topology.nodes[1]
    assert [(each.kind, each.node, each.confirmed) for each in found.parts] == [(kind, name, True)]
    assert (failed(block), block.suspected) == ({name}, {})
    gaps, others = unjudged(rounds, found), [each for each in topology.nodes if each != name]
    if len(topology.nodes) < 8:  # what the others carried is compared with nothing all the same
        assert [gaps[each] for each in others] == [[Lack.NOT_COMPARED] * len(topology.rails)] * len(others)
    assert gaps.get(name, []) == [Lack.NOT_COMPARED] * (len(topology.rails) - 1 if kind is PartKind.NIC else 0)


def _uplink(nodes: int, rails: int) -> Small:
    world = Small(flat(nodes, rails), {})
    world.behind = frozenset({0}), 0.0, False
    return world


def _paths(nodes: int, rails: int) -> Small:
    return Small(flat(nodes, rails), {Part(PartKind.PATH, 0, to, 0, between_nodes=True): 0.0 for to in (1, 2)})


def _port(nodes: int, rails: int) -> Small:
    return Small(flat(nodes, rails), {Part(PartKind.NIC, 0, rail=0): 0.0})


@pytest.mark.parametrize("rails", [1, 2])
@pytest.mark.parametrize("nodes", range(3, 8))
@pytest.mark.parametrize("planted", [_uplink, _paths, _port])
def test_without_leaves_a_block_too_small_to_compare_rates_neither_fails_nor_passes_a_node_over_which_nothing_arrives(
    planted: Callable[[int, int], Small], nodes: int, rails: int
) -> None:
    """Its uplink, the paths to it and its port look alike."""
    found, block, rounds = judged(planted(nodes, rails))
    assert failed(block) == set()
    assert unjudged(rounds, found)["n1"] == [Lack.NOT_COMPARED] * rails
    if nodes == 3 or planted is not _paths:  # with more partners, paths are named
        assert {each.kind for each in found.parts} <= {PartKind.NIC, PartKind.NODE}
        assert {name: {gap.code for gap in gaps} for name, gaps in block.suspected.items()} == {"n0": {Lack.UNDECIDED}}


@pytest.mark.parametrize("rails", [1, 2])
@pytest.mark.parametrize("nodes", range(4, 10))
def test_a_node_that_corrupts_fails_where_leaves_are_not_known(nodes: int, rails: int) -> None:
    """If it passed its next test, it would enter production; no switch corrupts what RDMA checks from end to end."""
    part = Part(PartKind.NODE, 0)
    _, block, _ = judged(Small(flat(nodes, rails), {part: 1.0}, frozenset({part})))
    assert failed(block) == {"n0"}


def test_what_may_be_a_switch_or_a_port_says_whether_plain_tcp_went_over_it() -> None:
    world = _port(4, 1)
    results = tuple(dataclasses.replace(each, host=np.ones_like(each.wrong)) for each in world.isolate()[0])
    block = BlockFindings()
    judge_fabric(Rounds(world.topology, places(world.topology), results), block)
    ((name, (gap,)),) = block.suspected.items()
    assert (name, "but plain TCP did" in gap.why) == ("n0", True)


@pytest.mark.parametrize("nodes", range(3, 8))
def test_one_pair_over_which_nothing_goes_is_neither_nodes_in_a_small_block(nodes: int) -> None:
    world = Small(flat(nodes), {Part(PartKind.PATH, 0, 1, 1, between_nodes=True): 0.0})
    found, block, rounds = judged(world)
    assert failed(block) == set()
    assert not any(part.node for part in found.parts)
    assert unjudged(rounds, found) == dict.fromkeys(rounds.topology.nodes, [Lack.NOT_COMPARED] * 4)


def test_two_dead_ports_of_a_small_block_may_be_one_switch() -> None:
    found, block, _ = judged(Small(flat(6), {Part(PartKind.NIC, node, rail=1): 0.0 for node in (0, 3)}))
    assert failed(block) == set()
    assert {name: {gap.code for gap in gaps} for name, gaps in block.suspected.items()} == {
        name: {Lack.UNDECIDED} for name in ("n0", "n3")
    }
    assert [part.kind for part in found.parts] == [PartKind.SHARED]


@st.composite
def faulty_fabrics(draw: st.DrawFn) -> Small:
    """Leaves of any size, one of which has a switch or uplinks at fault, on one rail or on all."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=2, max_size=6).filter(lambda each: 4 <= sum(each) <= 12))
    rails, kind = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([PartKind.LEAF, PartKind.UPLINK]))
    topology = from_groups(
        {f"n{leaf}-{at}": leaf for leaf, size in enumerate(sizes) for at in range(size)},
        [f"r{at}" for at in range(rails)],
    )
    leaf, share = draw(st.integers(0, len(sizes) - 1)), draw(st.sampled_from([0.0, 0.3, 0.8]))
    faults = {Part(kind, leaf, rail=rail): share for rail in draw(st.sampled_from([range(rails), range(1)]))}
    return Small(topology, faults)


@given(faulty_fabrics(), st.integers(0, 99))
@example(Small(from_groups({f"n{at}": at // 7 for at in range(8)}, ["r0"]), {Part(PartKind.UPLINK, 1, rail=0): 0.0}), 0)
@examples(10)
def test_no_leaf_or_uplink_fails_a_node_where_leaves_are_not_known(world: Small, seed: int) -> None:
    """Also of a leaf that has one node in the block: no pair tells its uplinks from the node's port."""
    known, results, block = unknown(world.topology.nodes, world.topology.rails), list[RoundResult](), BlockFindings()
    while (plan := next_round(known, results, seed)) is not None:
        results.append(world.measure(plan))
    judge_fabric(Rounds(known, places(known), tuple(results)), block)
    assert failed(block) == set()
