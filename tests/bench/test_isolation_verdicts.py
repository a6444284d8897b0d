"""The isolation bench's small blocks: its worlds, what it counts, and its bars on few seeds."""

from __future__ import annotations

import numpy as np
import pytest

from muster_criteria.cluster.fabric.decoding.parts import OF_THE_NODE
from muster_criteria.cluster.fabric.rounds import Kind, Round
from muster_criteria.model import Verdict
from tests.bench import bars
from tests.bench.isolation.verdicts import (
    CLEAR,
    CORRUPT,
    DEAD,
    FAULTS,
    NOTHING,
    OPEN,
    UNKNOWN,
    Tally,
    judged,
    tallies,
    total,
    worlds,
)
from tests.bench.isolation.world import Counts, World, fabric


def test_links_between_leaves_carry_less_and_a_slow_leaf_lowers_all_of_its_nodes() -> None:
    world = World(fabric(8, 1, a_leaf=4), Counts(switches=1), seed=0, between=0.5)
    ((leaf, share),) = ((part.a, share) for part, share in world.planted.items())
    a, b = np.triu_indices(8, 1)
    of = world.topology.leaf_array
    within = np.where(of[a] == leaf, share, 1.0)
    lowest = np.where((of[a] == leaf) | (of[b] == leaf), share, 1.0)
    assert world.levels(a, b)[:, 0] == pytest.approx(np.where(of[a] == of[b], within, 0.5 * lowest))


@pytest.mark.parametrize(("counts", "wrong"), [(Counts(dead=2), False), (Counts(corrupt=2), True)])
def test_neighbours_have_the_same_rail_dead_or_corrupt(counts: Counts, wrong: bool) -> None:
    world = World(fabric(8, 4), counts, seed=0, hot=0.0)
    (first, rail), (second, same) = ((part.a, part.rail) for part in world.planted)
    assert (second, same) == (first + 1, rail)
    result = world.measure(Round(1, Kind.SAME_LEAF, ((first, (first + 4) % 8),)))
    assert bool(result.alone[0, rail, 0] > 0) is wrong
    assert result.wrong.tolist() == [[wrong and at == rail for at in range(4)]]


@pytest.mark.parametrize(
    ("block", "rails", "links", "seed"),
    [("8, leaves unknown", 1, 0.5, 8), ("8, leaves unknown", 8, 1.0, 0), ("9, leaves unknown", 8, 1.0, 0)],
)
def test_a_slow_nic_does_not_pass_by_a_round_of_slow_pairs_where_leaves_are_unknown(
    block: str, rails: int, links: float, seed: int
) -> None:
    """A round whose pairs are all between leaves has half the usual rate, and a NIC that lost half is as fast."""
    for shape, _, world, known, _ in worlds(["bad NIC"], [seed]):
        if (shape, len(known.rails), world.between) == (block, rails, links):
            ((part, _),) = world.planted.items()
            assert judged(world, known, seed)[known.nodes[part.a]] not in (Verdict.PASS, Verdict.WARN)


@pytest.mark.parametrize(
    ("block", "rails", "what", "links", "seed"),
    [
        ("12, leaves unknown", 1, "slow uplink", 1.0, 2),  # slow cells are the median of a round
        ("8, leaves unknown", 8, "bad NIC", 0.5, 2),  # a partner of the screening is at fault too
        ("16, leaves unknown", 8, DEAD, 0.5, 6),
        ("9, leaves unknown", 8, "slow uplink", 1.0, 6),  # of its own, that no other node of the block is behind
    ],
)
def test_a_healthy_node_behind_slow_links_does_not_fail_where_leaves_are_unknown(
    block: str, rails: int, what: str, links: float, seed: int
) -> None:
    for shape, _, world, known, _ in worlds([what], [seed]):
        if (shape, len(known.rails), world.between) == (block, rails, links):
            bad = {known.nodes[part.a] for part in world.planted if part.kind in OF_THE_NODE}
            verdicts = judged(world, known, seed)
            assert not {name for name, verdict in verdicts.items() if verdict is Verdict.FAIL} - bad


@pytest.mark.slow
def test_small_blocks_fail_no_healthy_node_and_pass_no_dead_or_corrupt_rail() -> None:
    found = tallies(2)
    assert set(found.by_fault) == set(FAULTS)
    assert {name: each.healthy_failed for name, each in found.rows.items()} == dict.fromkeys(found.rows, 0)
    assert [found.by_fault[fault].bad_passed for fault in (DEAD, CORRUPT)] == [0, 0]


def test_healthy_nodes_pass_where_nothing_is_at_fault_and_it_is_known_what_is_usual() -> None:
    sound = tallies(1, [NOTHING]).sound
    assert bars.CLEAR_PASSED.holds(sound[CLEAR].healthy_passed / sound[CLEAR].healthy)
    assert sound[OPEN].healthy == 2 * sum(UNKNOWN.values())  # with 1 and 8 rails


def test_tallies_count_both_wrong_verdicts() -> None:
    tally = Tally()
    for bad in (True, False):
        for verdict in (Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL, Verdict.FAIL):
            tally.add(bad, verdict)
    assert total([tally, tally]) == Tally(bad=8, bad_passed=4, healthy=8, healthy_failed=2, healthy_passed=4)
