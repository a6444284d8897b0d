"""Nodes in flight: the bench gives every figure, and every node a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.inflight import __main__ as inflight

KEYS = {
    "nodes", "waiting_mb_per_node", "scheduler_loop_s", "cpu_s_per_node", "records_mb_per_life", "statistics_s",
    "sweep_s", "page_p95_ms", "first_bend",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.early(6)
@pytest.mark.needs_postgresql
@pytest.mark.needs_redis
def test_all_nodes_wait_at_once_and_each_that_ends_gets_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflight, "HOLD_S", 3.0)  # a long one makes the rates exact, which nothing here asks for
    found, (half, full) = inflight.measure(tmp_path, 12, seed=1, ending=3)
    assert set(found) >= KEYS
    assert found["nodes"] == 12
    assert found["finished"] == found["ending"] == 3
    assert (half["nodes"], full["nodes"]) == (6, 12)
    # What six nodes add to a triggerer's memory is less than what its garbage collector frees meanwhile.
    assert min(found[key] for key in KEYS - {"first_bend", "waiting_mb_per_node"}) > 0
    assert found["first_bend"] in inflight.LIMITS


def test_what_bends_first_follows_from_the_growth() -> None:
    rest = dict.fromkeys(("triggerers, MB", "page, ms", "sweep, s", "records, MB"), 1.0)
    half = dict.fromkeys(inflight.LIMITS, 0.1) | rest | {"nodes": 100}
    full = half | {"nodes": 200, "scheduler's loop, s": 0.2, "sweep, CPU s": 6.0}
    found = inflight.figures(half, full, {"wall, s": 1.0, "records, MB": 1.0, "scheduler": 0.25})
    assert found["first_bend"] == "sweep, CPU s"
    assert (found["growth"]["sweep, CPU s"], found["growth"]["page, CPU s"]) == (5.91, 0)
    assert found["bends_at"]["scheduler's loop, s"] == 200 * 150
    assert found["bends_at"]["page, CPU s"] is None
    assert found["cpu_s_per_node"] == 0.25
