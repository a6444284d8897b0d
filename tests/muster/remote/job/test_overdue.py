"""A job is overdue by the records, on a real OpenSSH server."""

from __future__ import annotations

import pytest

from muster import store
from muster.remote.job import jobs
from muster.remote.job.outcome import Kind
from tests.muster.remote.job.test_attempt import Bench, bench
from tests.support import standin

__all__ = ["bench"]
pytestmark = [pytest.mark.needs_sshd, pytest.mark.usefixtures("sqlite_db")]


@pytest.mark.parametrize(
    ("hint", "left_s"), [(Kind.DONE, -1.0), (Kind.LOST, -1.0), (Kind.DONE, 3600.0), (Kind.OVERDUE, 3600.0)]
)
def test_the_records_say_when_a_job_is_overdue_whatever_ended_the_waiting(
    bench: Bench, hint: Kind, left_s: float
) -> None:
    """A node that ends each trigger without an event would else hold its lease for ever."""
    standin.behave(bench.server.home, intake={"seconds": 600})
    attempt, _ = bench.begin()
    started = attempt.job.started_at
    assert started is not None
    passed = (store.clock.now() - started).total_seconds() - attempt.plan.deadline_s
    found = bench.settle(attempt, hint, grace_s=passed + left_s)
    with bench.connect() as client:
        now = jobs.look(client, attempt.node.work_dir, attempt.job_key, "").state
    assert isinstance(found, jobs.Look) is (now is jobs.State.RUNNING) is (left_s > 0)
    assert [end.kind for end in bench.ended] == ([] if left_s > 0 else [Kind.OVERDUE])
