"""``--watch``: why a stage is tried again."""

from __future__ import annotations

import dataclasses

import pytest

from muster import store
from muster.cli.airflow.follow import waits_because
from muster.model.runs import Job, RunKey
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("sqlite_db")


@pytest.mark.parametrize(("state", "shown"), [("up_for_retry", True), ("running", False), ("success", False)])
def test_a_stage_that_is_tried_again_says_why(state: str, shown: bool) -> None:
    store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    run = store.runs.get(RunKey(lease.dag_id, lease.run_id))
    job = Job(run.dag_id, run.run_id, "intake", "1", "submitted", "")
    store.runs.record_job(job)
    assert waits_because(run, {"intake": state}) == []
    store.runs.record_job(dataclasses.replace(job, note="refused the login"))
    assert waits_because(run, {"intake": state}) == [("intake", "refused the login")] * shown
