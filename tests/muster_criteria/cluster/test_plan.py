"""What the members of a block are to run: the same but for their rank, and for as long as it takes."""

from __future__ import annotations

import pytest

from muster_criteria.cluster.plan import PATH_NODE_S, Asked, cluster_calls, cluster_deadline_s
from muster_criteria.stages import LEVELS
from muster_node.cluster.rendezvous.block import block_of
from muster_node.cluster.training.faults import SAVE_EVERY
from muster_node.probe import resolve_params
from muster_node.probes.cluster_collectives import ClusterCollectives
from muster_node.probes.cluster_training import ClusterTraining
from tests.muster_criteria.cluster_results import PROGRAMME


def test_plans_differ_in_rank_only_and_are_what_the_probes_take() -> None:
    calls = cluster_calls(
        PROGRAMME, ["a", "b", "c"], master_addr="10.0.0.1", master_ports=[29500], session="s", level="demo", seed=4
    )
    for position, probe in enumerate((ClusterCollectives, ClusterTraining)):
        mine = [calls[name][position] for name in "abc"]
        blocks = [block_of(call.probe, resolve_params(probe, call.params), call.seed) for call in mine]
        assert [(b.rank, b.name) for b in blocks] == [(0, "a"), (1, "b"), (2, "c")]
        assert len({b.terms for b in blocks}) == 1
        assert blocks[0].join_timeout_s == 60.0
    assert [call.params for call in calls["a"] if call.probe == "gpu_watch"] == [{}], "each member's own"
    assert cluster_deadline_s(PROGRAMME, "demo", 3) > sum(call.timeout_s for call in calls["a"])
    with pytest.raises(ValueError):
        cluster_calls(PROGRAMME, ["a", "b"], master_addr="x", master_ports=[1], session="s", level="tall", seed=1)


@pytest.mark.parametrize("level", LEVELS)
def test_the_more_nodes_load_a_checkpoint_the_longer_that_may_take(level: str) -> None:
    """Each node reads all of it."""
    where = {"master_addr": "10.0.0.1", "master_ports": [1], "session": "s", "level": level, "seed": 4}
    few, many = (
        next(each for each in cluster_calls(PROGRAMME, names, **where)["n0"] if each.probe == "cluster_training")  # type: ignore[arg-type]
        for names in ([f"n{at}" for at in range(count)] for count in (2, 34))
    )
    more = many.params["path_s"] - few.params["path_s"]
    assert more == 32 * PATH_NODE_S
    assert many.timeout_s - few.timeout_s == more
    assert cluster_deadline_s(PROGRAMME, level, 34) - cluster_deadline_s(PROGRAMME, level, 2) == more
    assert few.params["path_s"] < few.timeout_s, "the rest of the training takes its time, too"


def test_a_rank_is_killed_at_the_longest_level_only() -> None:
    steps = {}
    for level in LEVELS:
        calls = cluster_calls(
            PROGRAMME, ["a", "b"], master_addr="10.0.0.1", master_ports=[1], session="s", level=level, seed=4
        )
        (call,) = (each for each in calls["a"] if each.probe == "cluster_training")
        steps[level] = resolve_params(ClusterTraining, call.params)["fault_steps"]
    # One third and two thirds are apart by more than the steps between two checkpoints.
    assert steps.pop("long") // 3 > SAVE_EVERY
    assert set(steps.values()) == {0}


@pytest.mark.parametrize("level", LEVELS)
def test_a_person_may_ask_a_block_for_more_than_its_level(level: str) -> None:
    where = {"master_addr": "10.0.0.1", "master_ports": [1], "session": "s", "level": level, "seed": 4}
    asked = Asked(soak_minutes=90, fault_run=True)
    plain, more = (
        {call.probe: call for call in cluster_calls(PROGRAMME, ["a", "b"], **where, asked=each)["a"]}  # type: ignore[arg-type]
        for each in (Asked(), asked)
    )
    assert resolve_params(ClusterCollectives, more["cluster_collectives"].params)["soak_minutes"] == 90
    assert resolve_params(ClusterTraining, more["cluster_training"].params)["fault_steps"] // 3 > SAVE_EVERY
    room = {probe: more[probe].timeout_s - plain[probe].timeout_s for probe in plain}
    assert room["cluster_collectives"] >= 90 * 60
    assert room["cluster_training"] > 0
    added = cluster_deadline_s(PROGRAMME, level, 2, asked) - cluster_deadline_s(PROGRAMME, level, 2)
    assert added == sum(room.values())
