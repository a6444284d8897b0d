"""The same DAGs on CeleryExecutor with Redis and PostgreSQL: what dies there loses nothing, and nothing is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import fleet
from tests.support.simulated_fleet import Start

NODES = 4


@pytest.mark.slow
@pytest.mark.needs_postgresql
@pytest.mark.needs_redis
@pytest.mark.early(5)
def test_a_triggerer_stalls_another_and_a_worker_die_and_every_node_is_tested_and_reported_once(tmp_path: Path) -> None:
    outcome, _cost = fleet.measure(tmp_path, NODES, seed=7, warm_nodes=0, idle_s=1)
    assert outcome.lost == []
    assert outcome.doubles == []
    assert outcome.wrong == []
    assert outcome.mailed_twice == []
    frozen, killed = outcome.waited.values()
    assert frozen > 0, "nodes waited in the triggerer that stalled"
    assert killed == NODES, "all nodes waited in the triggerer that was killed"
    assert outcome.interrupted > 0, "the worker was at something when it was killed"


def test_a_stage_that_a_node_began_twice_counts_as_tested_twice() -> None:
    once = [Start("a", "intake", "1"), Start("a", "burn_in", "2"), Start("b", "intake", "3")]
    assert fleet.repeated(once) == []
    assert fleet.repeated([*once, Start("a", "intake", "4"), Start("a", "intake", "1")]) == ["a intake"] * 2
