"""The planner: disjoint pairs, leaf pairs covered, different partners, suspects with two good ones on two leaves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.cluster.fabric.decoding.levels import OTHERS_MIN
from muster_criteria.cluster.fabric.decoding.parts import Part, PartKind
from muster_criteria.cluster.fabric.pairing import circle_round, screening
from muster_criteria.cluster.fabric.planner import next_round
from muster_criteria.cluster.fabric.rounds import Kind, RoundResult
from muster_criteria.cluster.fabric.topology import Topology, from_groups
from tests.muster_criteria.cluster.fabric.worlds import Small, fabric, flat
from tests.support.examples import examples


@given(st.integers(2, 40))
def test_a_circle_schedule_has_every_pair_once(count: int) -> None:
    cycle = count - 1 + count % 2
    every = [pair for number in range(cycle) for pair in circle_round(count, number)]
    assert sorted(every) == [(a, b) for a in range(count) for b in range(a + 1, count)]


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Leaves and pods of uneven sizes, also single nodes and single leaves."""
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=9))
    pods = draw(st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes)))
    leaf = {f"n{at}-{node}": f"l{at}" for at, size in enumerate(sizes) for node in range(size)}
    return from_groups(leaf, ["r0", "r1"], {f"l{at}": f"p{pod}" for at, pod in enumerate(pods)})


@given(topologies(), st.integers(0, 99))
@examples(35)
def test_every_node_is_in_at_most_one_test_a_round_and_few_rest(topology: Topology, seed: int) -> None:
    plans = screening(topology, seed)
    assert len(plans) <= 3
    for plan in plans:
        nodes = [node for pair in plan.pairs for node in pair]
        assert len(nodes) == len(set(nodes))
        assert set(nodes) <= set(range(len(topology.nodes)))
    if len(topology.nodes) > 1:
        assert all(len(topology.nodes) - 2 * len(plan.pairs) <= 1 for plan in plans)


@given(topologies(), st.integers(0, 99), st.data())
@examples(35)
def test_of_the_nodes_that_are_left_at_most_one_rests_in_a_round_of_the_screening(
    topology: Topology, seed: int, data: st.DataObject
) -> None:
    """The DAG ends the rounds with one that has no pairs."""
    nodes = range(len(topology.nodes))
    gone = data.draw(st.sets(st.sampled_from(nodes), max_size=len(nodes) - 1))
    world, results = Small(topology, {}), list[RoundResult]()
    while len(results) < len(screening(topology, seed)):
        plan = next_round(topology, results, seed, gone=gone)
        assert plan is not None
        met = [node for pair in plan.pairs for node in pair]
        assert len(met) == len(set(met))
        assert len(set(nodes) - gone - set(met)) <= 1
        results.append(world.measure(plan))


@given(topologies(), st.integers(0, 99), st.data())
@examples(20)
def test_rounds_of_confirmation_have_disjoint_pairs_too_and_an_end(
    topology: Topology, seed: int, data: st.DataObject
) -> None:
    node, rail = data.draw(st.integers(0, len(topology.nodes) - 1)), data.draw(st.integers(0, 1))
    results, _ = Small(topology, {Part(PartKind.NIC, node, rail=rail): 0.3}).isolate(seed)
    assert len(results) <= 7
    for result in results:
        nodes = [each for pair in result.round.pairs for each in pair]
        assert len(nodes) == len(set(nodes))


@pytest.mark.parametrize("pods", [100, 8, 4])
def test_each_kind_keeps_to_its_leaves_and_pods(pods: int) -> None:
    topology = fabric(16, 16, leaves_a_pod=pods)
    leaf, pod = topology.leaf_array, np.array(topology.pod_of)[topology.leaf_array]
    for plan in screening(topology, 1):
        for a, b in plan.pairs:
            assert (leaf[a] == leaf[b]) == (plan.kind is Kind.SAME_LEAF)
            assert (pod[a] != pod[b]) == (plan.kind is Kind.OTHER_POD)
    kinds = [plan.kind for plan in screening(topology, 1)]
    assert kinds == [Kind.SAME_LEAF, Kind.OTHER_LEAF, Kind.OTHER_LEAF if pods == 100 else Kind.OTHER_POD]


def test_one_round_covers_all_leaf_pairs_where_a_leaf_has_as_many_nodes_as_there_are_others() -> None:
    topology = fabric(16, 16)
    for plan in screening(topology, 2)[1:]:
        met = {tuple(sorted((topology.leaf_of[a], topology.leaf_of[b]))) for a, b in plan.pairs}
        assert len(met) == 16 * 15 / 2


def test_leaves_with_fewer_nodes_go_on_in_the_next_round() -> None:
    topology = fabric(8, 4)
    met = {
        tuple(sorted((topology.leaf_of[a], topology.leaf_of[b])))
        for p in screening(topology, 2)[1:]
        for a, b in p.pairs
    }
    assert len(met) == 8 * 7 / 2


@pytest.mark.parametrize("topology", [flat(16), fabric(4, 4), fabric(8, 8, leaves_a_pod=4), fabric(2, 8)])
def test_no_pair_meets_twice_in_the_screening(topology: Topology) -> None:
    pairs = Counter(pair for plan in screening(topology, 3) for pair in plan.pairs)
    assert max(pairs.values()) == 1


def test_a_suspect_is_confirmed_by_two_good_partners_on_two_leaves() -> None:
    bad, other = 5, 22
    small = Small(fabric(8, 4), {Part(PartKind.NIC, bad, rail=1): 0.5, Part(PartKind.NODE, other): 0.5})
    results, _ = small.isolate()
    for node in (bad, other):
        partners = [
            (set(pair) - {node}).pop()
            for result in results
            if result.round.kind is Kind.CONFIRM
            for pair in result.round.pairs
            if node in pair
        ]
        assert len(set(partners)) == len(partners) == 2
        assert not set(partners) & {bad, other}
        assert len({small.topology.leaf_of[partner] for partner in partners}) == 2


def test_no_suspect_is_confirmed_by_another() -> None:
    bad = set(range(8))
    small = Small(fabric(8, 4), {Part(PartKind.NIC, node, rail=node % 4): 0.5 for node in bad})
    pairs = [pair for each in small.isolate()[0] if each.round.kind is Kind.CONFIRM for pair in each.round.pairs]
    assert [pair for pair in pairs if bad & set(pair)]
    assert not [pair for pair in pairs if bad >= set(pair)]


@pytest.mark.parametrize(("short", "references"), [(range(0), 8), (range(32), 7)])
def test_confirmation_has_pairs_of_good_nodes_to_compare_with(short: range, references: int) -> None:
    """Also where a pair of each node broke."""
    small = Small(fabric(8, 4), {Part(PartKind.NIC, 5, rail=1): 0.5})
    results = [small.measure(plan) for plan in screening(small.topology, 0)]
    plan = next_round(small.topology, results, 0, short=short)
    assert plan is not None
    assert plan.references == references
    assert not [pair for pair in plan.pairs[-references:] if 5 in pair]


def test_the_plan_is_the_same_for_the_same_results() -> None:
    small = Small(fabric(8, 4), {Part(PartKind.NIC, 5, rail=1): 0.5})
    assert [r.round for r in small.isolate(4)[0]] == [r.round for r in small.isolate(4)[0]]


@pytest.mark.parametrize("nodes", [8, 9, 10, 12])
@pytest.mark.parametrize("faults", [1, 2, 3])
def test_a_round_of_a_small_block_compares_each_suspect_with_as_many_pairs_as_a_comparison_takes(
    nodes: int, faults: int
) -> None:
    planted = {Part(PartKind.NIC, at, rail=at): 0.6 for at in range(faults)}
    for seed in range(3):
        results, diagnosis = Small(flat(nodes), planted).isolate(seed)
        assert all(len(each.round.pairs) > OTHERS_MIN for each in results)
        assert {each.part for each in diagnosis.named} == set(planted)
