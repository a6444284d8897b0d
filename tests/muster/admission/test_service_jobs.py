"""Tests of idle nodes as jobs of their scheduler: a job ends with its run, and never with another's."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import records
from muster.admission import service
from muster.errors import Preempted, SchedulerDown
from muster.integration import closing
from muster.lifecycle.transitions import State
from muster.operators import claims, qualification, revalidation
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.admission.test_service import DAG, NODE, THERE, in_production, line
from tests.support.node_list import NodeList

pytestmark = pytest.mark.usefixtures("fleet_db")


class Jobs:
    """Test jobs of the list: each runs from its begin to its end. ``ended``: in order."""

    def __init__(self) -> None:
        self.running: dict[str, str] = {}
        self.ended: list[str] = []
        self.down = False

    def check(self) -> None: ...

    def begin(self, node: str, job: str) -> None:
        self.running[job] = node
        assert list(self.running.values()).count(node) == 1

    def step(self, job: str) -> tuple[str, ...] | None:
        return ("step", job) if job in self.running else None

    def end(self, job: str) -> None:
        if self.down:
            raise SchedulerDown("it does not answer")
        self.ended += [job] if self.running.pop(job, "") else []


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Idle nodes of the list are tested as jobs."""
    found = Jobs()
    monkeypatch.setattr(NodeList, "tests", found)
    return found


def revalidate(run: str = "r1") -> records.LeaseRecord:
    lease = records.acquire_lease(NODE, DAG, run)
    service.take_for_test(NODE, f"node_revalidation {run}", "revalidation")
    records.begin_run(DAG, run, NODE, "short", "idle")
    return lease


def test_a_node_that_its_test_job_leaves_in_revalidation_is_closed_when_the_run_is_over(
    nodes: Path, jobs: Jobs
) -> None:
    in_production()
    lease = revalidate()
    assert jobs.running
    fleet.do_stage(lease, "intake", Verdict.INCONCLUSIVE, findings=(fleet.finding(),))
    with pytest.raises(AirflowFailException):
        revalidation.conclude(DAG, "r1")
    assert (records.get_node(NODE).state, line(nodes)) == (State.REVALIDATION, THERE)
    qualification.release(DAG, "r1")
    assert "muster:" in line(nodes)


@pytest.mark.parametrize("down", [False, True])
def test_a_test_job_that_was_left_is_ended_before_another_begins(nodes: Path, jobs: Jobs, down: bool) -> None:
    in_production()
    revalidate()
    (left,) = jobs.running
    records.release_leases(DAG, "r1", "its process died")
    jobs.down = down
    if down:
        with pytest.raises(SchedulerDown):
            revalidate("r2")
        assert jobs.running == {left: THERE}
        return
    revalidate("r2")
    revalidate("r2")
    assert jobs.ended == [left]
    assert service.step_of_test(NODE)[1] in jobs.running


@pytest.mark.parametrize("down", [False, True])
def test_a_test_job_that_was_left_is_ended_before_a_qualification(nodes: Path, jobs: Jobs, down: bool) -> None:
    """Else the qualification would run as a step of it, and end with it."""
    in_production()
    revalidate()
    (left,) = jobs.running
    records.release_leases(DAG, "r1", "its process died")
    jobs.down = down
    with pytest.raises(SchedulerDown) if down else contextlib.nullcontext():
        claims.refuse_in_use([NODE], None)
    assert jobs.ended == ([] if down else [left])
    place = records.scheduler_place(NODE)
    assert place
    assert place.test_job == (left if down else "")


@pytest.mark.parametrize("by", ["conclude", "claim", "reconcile", "release"])
def test_the_end_of_one_run_leaves_the_job_of_the_next(
    nodes: Path, jobs: Jobs, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run takes the node just after the first one's lease ended, or was found to have ended."""
    in_production()
    revalidate()

    if by == "release":
        released = closing.release

        def release(*given: str) -> list[str]:
            freed = released(*given)
            revalidate("r2")
            return freed

        monkeypatch.setattr(closing, "release", release)
        qualification.release(DAG, "r1")
    else:
        records.release_leases(DAG, "r1", "its process died")
    if by == "reconcile":
        live = records.live_leases

        def live_leases() -> list[records.LeaseRecord]:
            found = live()
            monkeypatch.setattr(records, "live_leases", live)
            revalidate("r2")
            return found

        monkeypatch.setattr(records, "live_leases", live_leases)
        service.reconcile()
    elif by != "release":
        revalidate("r2")
    if by == "conclude":
        with pytest.raises(AirflowFailException):
            revalidation.conclude(DAG, "r1")
    elif by == "claim":
        monkeypatch.setattr(service, "in_use", lambda node: "")
        monkeypatch.setattr(claims, "controller_ready", lambda: None)
        with pytest.raises(AirflowSkipException):
            revalidation.claim(DAG, "r1", {"node": NODE, "level": "demo"})
    place = records.scheduler_place(NODE)
    assert place
    assert list(jobs.running) == [place.test_job]


@pytest.mark.parametrize("when", ["before its first stage", "after a stage"])
def test_no_step_of_a_test_runs_on_an_open_node_once_its_job_was_ended(nodes: Path, jobs: Jobs, when: str) -> None:
    in_production()
    lease = revalidate()
    if when == "after a stage":
        fleet.do_stage(lease, "intake")
        assert service.step_of_test(NODE)
    assert service.end_test(NODE) == ""
    records.begin_stage(DAG, "r1", "burn_in" if when == "after a stage" else "intake")
    with pytest.raises(Preempted):
        service.step_of_test(NODE)
    assert line(nodes) == THERE, "an idle test never drains"
    assert service.preempted(NODE)
    with pytest.raises(AirflowFailException):
        revalidation.conclude(DAG, "r1")
    qualification.release(DAG, "r1")
    assert (records.get_node(NODE).state, line(nodes)) == (State.PRODUCTION, THERE)
    place = records.scheduler_place(NODE)
    assert place
    assert not place.preempted


def test_no_stage_runs_on_a_node_that_somebody_opened_during_its_test(nodes: Path) -> None:
    in_production()
    revalidate()
    records.begin_stage(DAG, "r1", "intake")
    assert service.step_of_test(NODE) == ()
    nodes.write_text(f"{THERE}\n")
    with pytest.raises(Preempted):
        service.step_of_test(NODE)
    records.release_leases(DAG, "r1", "its process died")
    revalidate("r2")
    assert "muster:" in line(nodes)
    assert not service.preempted(NODE)


@pytest.mark.parametrize("there", ["open", "closed by another", "away"])
def test_no_stage_runs_before_the_withdrawal_of_its_node_is_confirmed(nodes: Path, there: str) -> None:
    """As of a qualification that takes a node in service."""
    in_production()
    nodes.write_text(f"{THERE} # alice: fan\n" if there == "closed by another" else f"{THERE}\n")
    fleet.begin(NODE, "again")
    if there == "away":
        nodes.rename(nodes.with_suffix(".away"))
    records.begin_stage(fleet.DAG, "again", "intake")
    refused = {"open": Preempted, "away": SchedulerDown}
    with pytest.raises(refused[there]) if there in refused else contextlib.nullcontext():
        assert service.step_of_test(NODE) == ()
