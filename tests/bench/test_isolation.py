"""The isolation bench: planted parts are really in what is measured, and its bars hold at small sizes on many seeds."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from muster_criteria.cluster.fabric.decoding.parts import OF_THE_NODE, Part, PartKind
from muster_criteria.cluster.fabric.topology import from_groups
from tests.bench.isolation import others
from tests.bench.isolation.__main__ import isolate, main, score
from tests.bench.isolation.verdicts import CLEAR, NOTHING, Tallies, Tally
from tests.bench.isolation.world import Counts, World, fabric

SMALL = Counts(nodes=2, nics=2, paths=1, leaves=1)


def test_planted_parts_lower_what_goes_over_them_and_nothing_else() -> None:
    world = World(fabric(128, 4, a_leaf=16, a_pod=4), Counts(1, 1, 1, 1), seed=3)
    a, b = np.triu_indices(128, 1)
    low = world.levels(a, b) < 1.0
    for kind, share in ((PartKind.NODE, 4), (PartKind.NIC, 1)):
        (part,) = (each for each in world.planted if each.kind is kind)
        assert low[(a == part.a) | (b == part.a)].any(axis=0).sum() >= share
    touched = {part.a for part in world.planted if part.kind in (PartKind.NODE, PartKind.NIC)}
    leaf = world.topology.leaf_array
    inside = (leaf[a] == leaf[b]) & ~np.isin(a, list(touched)) & ~np.isin(b, list(touched))
    assert not low[inside].any()


@pytest.mark.parametrize("seed", range(3))
def test_all_are_named_at_a_small_size(seed: int) -> None:
    world = World(fabric(256, 4, a_leaf=16, a_pod=8), SMALL, seed)
    outcome = isolate(world, seed)
    assert score(world, outcome.named, outcome.covered) == {"planted": 6, "named": 6, "missed": 0, "wrongly_named": 0}
    assert outcome.rounds <= 7


@pytest.mark.parametrize("sizes", [(8, 1), (16, 1), (6, 2), (12, 4)])
@pytest.mark.parametrize("bad", [0, 1])
def test_uplinks_that_are_slower_by_design_fail_no_healthy_node(sizes: tuple[int, ...], bad: int) -> None:
    topology = from_groups(
        {f"n{leaf}-{at}": f"leaf{leaf}" for leaf, size in enumerate(sizes) for at in range(size)},
        [f"r{rail}" for rail in range(4)],
    )
    for seed in range(12):
        world = World(topology, Counts(nodes=bad), seed, between=0.5)
        diagnosis = isolate(world, seed).diagnosis
        assert {each.part for each in diagnosis.named if each.part.kind in OF_THE_NODE} <= set(world.planted)


@pytest.mark.slow
def test_a_hundred_seeds_name_everything_and_nothing_else() -> None:
    topology = fabric(256, 4, a_leaf=16, a_pod=8)
    trouble, healthy = [], []
    for seed in range(100):
        world = World(topology, SMALL, seed)
        outcome = isolate(world, seed)
        found = score(world, outcome.named, outcome.covered)
        if found["missed"] or found["wrongly_named"] or outcome.rounds > 7:
            trouble.append((seed, outcome.rounds, found))
        nothing = isolate(World(topology, Counts(), seed), seed)
        healthy.append(nothing.rounds)
        assert nothing.named == frozenset()
    assert trouble == []
    # A hot spot in eight flows of one rail at once costs a round more: fewer than one run in a hundred.
    assert sum(rounds > 4 for rounds in healthy) <= 1


def test_the_other_ways_find_what_they_can() -> None:
    world = World(fabric(128, 4, a_leaf=16, a_pod=4), Counts(nodes=2), seed=1, hot=0.0)
    planted = set(world.planted)
    assert others.known_good(world, 1).named == planted
    assert others.halving(world).named == planted
    assert others.circle(world).named == planted
    assert others.circle(world).rounds == 127


def test_a_node_named_for_its_nic_is_neither_right_nor_wrong() -> None:
    world = World(fabric(128, 4, a_leaf=16, a_pod=4), Counts(nics=1), seed=1)
    (nic,) = world.planted
    assert score(world, frozenset({Part(PartKind.NODE, nic.a)})) == {
        "planted": 1, "named": 0, "missed": 1, "wrongly_named": 0,
    }  # fmt: skip
    assert score(world, frozenset({Part(PartKind.NODE, nic.a + 1)}))["wrongly_named"] == 1


@pytest.mark.parametrize(
    ("failed", "passed", "status"), [(0, 100, 0), (0, 99, 0), (0, 98, 1), (1, 99, 1)],
    ids=["all pass", "at the bar", "too many abstentions", "a healthy node failed"],
)  # fmt: skip
def test_the_last_line_is_the_answer(
    failed: int, passed: int, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["isolation", "--nodes", "256", "--rails", "4", "--bad", "1", "--nics", "1",
                                      "--links", "1", "--leaves", "1", "--blocks", "1"])  # fmt: skip
    one = Tally(healthy=100, healthy_failed=failed, healthy_passed=passed)
    found = Tallies({NOTHING: one}, {"8 + 1": one}, {CLEAR: one})
    monkeypatch.setattr("tests.bench.isolation.__main__.tallies", lambda seeds: found)
    assert main() == status
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"rounds", "planted", "named", "missed", "wrongly_named", "plan_seconds"} <= set(answer)
    assert (answer["bad_passed"], answer["healthy_failed"], answer["healthy"]) == (0, failed, 100)
    assert (answer["clear_passed"], answer["clear"]) == (passed, 100)
