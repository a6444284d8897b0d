"""Runs from begin to end: what they do to their node, what a Clear does, and the budget of inconclusive runs."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from muster import store
from muster.errors import IllegalMove, Refusal, UnknownNode, UnknownRun
from muster.model.dags import NODE_REVALIDATION
from muster.model.runs import Job, RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster_criteria.model import Coverage, Severity, Verdict
from tests.muster import fleet
from tests.support.refusals import illegal

pytestmark = pytest.mark.usefixtures("fleet_db")


def story(node: str = "gpu-0001") -> list[str]:
    return [str(event.to_state) for event in store.nodes.events(node) if event.from_state != event.to_state]


def inconclusive(run_id: str) -> None:
    lease = fleet.begin(run_id=run_id)
    store.runs.begin_stage(lease.key, "intake")
    store.runs.finish(lease.key, Verdict.INCONCLUSIVE, "SSH was refused.")
    store.leases.release(lease.key, "over")


@pytest.mark.both_dialects
def test_a_passing_run_qualifies_its_node() -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    assert story() == ["intake", "burn_in", "validation", "qualified"]
    assert store.nodes.events("gpu-0001")[-1].evidence == {
        "run": "node_qualification/gpu-0001__new", "verdict": "PASS", "full_coverage": True,
    }  # fmt: skip
    run = store.runs.get(RunKey(fleet.DAG, "gpu-0001__new"))
    assert (run.state_before, run.state_after, run.verdict) == (State.REGISTERED, State.QUALIFIED, Verdict.PASS)


def test_beginning_again_is_the_same_run() -> None:
    store.nodes.add(fleet.new_node())
    first = store.runs.begin(RunKey(fleet.DAG, "r"), "gpu-0001", "short", "new", "asked for")
    assert store.runs.begin(RunKey(fleet.DAG, "r"), "gpu-0001", "short", "new") == first
    assert first.forced == "asked for"
    assert [run.run_id for run in store.runs.find()] == ["r"]


def test_a_failing_run_quarantines_and_no_run_takes_the_node_from_there() -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.FINDING,))
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
    store.leases.release(lease.key, "over")
    assert story() == ["intake", "quarantine"]
    with illegal(Refusal.STATE):
        store.runs.begin(RunKey(fleet.DAG, "again"), "gpu-0001", "short", "again")
    assert [run.run_id for run in store.runs.find()] == ["gpu-0001__new"]


def test_three_inconclusive_runs_in_a_row_end_in_triage() -> None:
    store.nodes.add(fleet.new_node())
    for attempt in range(3):
        assert store.nodes.get("gpu-0001").state is State.REGISTERED
        inconclusive(f"run-{attempt}")
    assert story()[-2:] == ["quarantine", "triage"]
    assert store.runs.get(RunKey(fleet.DAG, "run-2")).state_after is State.TRIAGE


def test_a_conclusive_run_between_them_fills_the_budget_again() -> None:
    store.nodes.add(fleet.new_node())
    inconclusive("run-0")
    inconclusive("run-1")
    fleet.qualify(run_id="run-2")
    inconclusive("run-3")
    assert store.nodes.get("gpu-0001").inconclusive == 1
    assert store.nodes.get("gpu-0001").state is State.REGISTERED


def test_finishing_twice_counts_once() -> None:
    """A task that is retried after its commit must not spend the budget twice."""
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    for _ in range(3):
        store.runs.finish(lease.key, Verdict.INCONCLUSIVE, "SSH was refused.")
    assert store.nodes.get("gpu-0001").inconclusive == 1


def test_a_node_lost_before_its_first_stage_still_counts() -> None:
    store.nodes.add(fleet.new_node())
    for attempt in range(3):
        lease = fleet.begin(run_id=f"run-{attempt}")
        store.runs.finish(lease.key, Verdict.INCONCLUSIVE, "SSH was refused.")
        store.leases.release(lease.key, "over")
    assert store.nodes.get("gpu-0001").state is State.TRIAGE


@pytest.mark.parametrize(
    ("found", "then"), [(Verdict.PROVISIONAL, State.PRODUCTION), (Verdict.WARN, State.REVALIDATION)]
)
def test_an_inconclusive_revalidation_that_found_nothing_until_then_ends_no_service(
    found: Verdict, then: State
) -> None:
    """Also where a stage had nothing to be judged by: it would wait out of production for peers that do not come."""
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    store.nodes.move("gpu-0001", State.PRODUCTION, "Ada", "needed now")
    lease = fleet.begin(run_id="again")
    fleet.do_stage(lease, "intake")
    warned = (fleet.finding(severity=Severity.WARNING),) if found is Verdict.WARN else ()
    fleet.do_stage(lease, "performance", found, findings=warned)
    fleet.do_stage(lease, "thermal", Verdict.INCONCLUSIVE)
    assert store.nodes.get("gpu-0001").state is State.REVALIDATION
    run = store.runs.finish(lease.key, Verdict.INCONCLUSIVE, "thermal: SSH was refused.")
    assert run.state_after is then
    assert store.nodes.get("gpu-0001").inconclusive == 1


def test_a_cleared_run_resumes_where_it_had_come_to() -> None:
    """Somebody repairs the network and clears the failed task: the stages that stand are not run again."""
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    for stage in ("intake", "burn_in", "integrity"):
        fleet.do_stage(lease, stage)
    store.runs.finish(lease.key, Verdict.INCONCLUSIVE, "SSH was refused.")
    store.leases.release(lease.key, "over")
    again = store.leases.acquire("gpu-0001", lease.key)
    assert again.token > lease.token
    assert store.runs.begin_stage(lease.key, "performance").state is State.VALIDATION
    assert store.runs.get(lease.key).ended_at is None
    for stage in ("performance", "thermal"):
        fleet.do_stage(again, stage)
    assert store.runs.finish(lease.key, Verdict.PASS, "All is well.").state_after is State.QUALIFIED


def test_a_stage_does_not_begin_before_those_that_come_first() -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    with illegal(Refusal.NO_SUCH_MOVE):
        store.runs.begin_stage(lease.key, "integrity")


def test_clearing_an_earlier_stage_goes_back() -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    for stage in ("intake", "burn_in", "integrity"):
        fleet.do_stage(lease, stage)
    assert store.runs.begin_stage(lease.key, "burn_in").state is State.BURN_IN


@pytest.mark.parametrize(
    ("coverage", "done"), [(Coverage(4, 3, 3), STAGES), (Coverage(0, 0, 0), STAGES), (Coverage(4, 4, 4), STAGES[:4])]
)
def test_a_pass_with_a_gap_is_no_full_coverage(coverage: Coverage, done: tuple[str, ...]) -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    for stage in done:
        fleet.do_stage(lease, stage, coverage=coverage)
    store.runs.finish(lease.key, Verdict.PASS, "Is it?")
    assert "full_coverage" not in store.nodes.events("gpu-0001")[-1].evidence


def test_a_node_that_a_person_took_away_meanwhile_stays_there() -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    fleet.do_stage(lease, "intake")
    store.nodes.move("gpu-0001", State.QUARANTINE, "Ada", "smoke")
    with illegal(Refusal.NO_SUCH_MOVE):
        store.runs.begin_stage(lease.key, "burn_in")
    store.runs.finish(lease.key, Verdict.PASS, "All is well.")
    store.leases.release(lease.key, "over")
    assert store.nodes.get("gpu-0001").state is State.QUARANTINE


def test_jobs_are_kept_per_generation() -> None:
    store.nodes.add(fleet.new_node())
    fleet.begin()
    assert store.runs.get_job(RunKey(fleet.DAG, "gpu-0001__new"), "burn_in") is None
    for generation, state in (("1", "submitted"), ("2", "submitted"), ("1", "collected")):
        store.runs.record_job(Job(fleet.DAG, "gpu-0001__new", "burn_in", generation, state, f"/jobs/{generation}"))
    latest = store.runs.get_job(RunKey(fleet.DAG, "gpu-0001__new"), "burn_in")
    first = store.runs.get_job(RunKey(fleet.DAG, "gpu-0001__new"), "burn_in", "1")
    assert latest is not None
    assert (latest.attempt_key, latest.state, latest.remote_dir) == ("2", "submitted", "/jobs/2")
    assert first is not None
    assert first.state == "collected"
    run = RunKey(fleet.DAG, "gpu-0001__new")
    assert [each.stage for each in store.runs.find_jobs(run, ["collected"])] == ["burn_in"]
    assert store.runs.find_jobs(run, ["collected"], node="another") == []
    assert store.runs.find_jobs(RunKey(fleet.DAG, "another"), ["collected"]) == []


def test_what_is_noted_of_a_job_leaves_a_state_that_has_changed_since_it_was_read() -> None:
    store.nodes.add(fleet.new_node())
    fleet.begin()
    read = Job(fleet.DAG, "gpu-0001__new", "burn_in", "1", "running", "/jobs/1")
    store.runs.record_job(dataclasses.replace(read, state="final"))
    store.runs.change_job(read, note="no answer", chassis="{}")
    job = store.runs.get_job(read.key, "burn_in")
    assert job is not None
    assert (job.state, job.note, job.chassis) == ("final", "no answer", "{}")


def test_what_is_not_there_is_stated() -> None:
    with pytest.raises(UnknownRun):
        store.reporting.run(RunKey("dag", "nothing"))
    with pytest.raises(UnknownNode):
        store.runs.begin(RunKey("dag", "r"), "absent", "short", "new")


@pytest.mark.parametrize("meanwhile", ["nothing", "repaired"])
def test_a_run_that_is_cleared_after_a_repair_measures_each_stage_again(meanwhile: str) -> None:
    """The last task alone was cleared: what the run measured before the repair is no proof of the node as it is now."""
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    repaired = (State.QUARANTINE, State.TRIAGE, State.REPAIR, State.REGISTERED)
    for state in repaired if meanwhile == "repaired" else ():
        store.nodes.move("gpu-0001", state, "Ada", "GPU 3 is another one")
    lease = fleet.begin()
    if meanwhile == "nothing":
        fleet.do_stage(lease, "thermal")
        return
    with pytest.raises(IllegalMove):
        fleet.do_stage(lease, "thermal")
    for stage in ("intake", "burn_in", "thermal"):
        fleet.do_stage(lease, stage)
    assert [each.stage for each in store.runs.stages(lease.key)] == ["intake", "burn_in", "thermal"]


@pytest.mark.both_dialects
def test_a_record_is_of_one_run_of_airflow_and_of_one_machine() -> None:
    """Its jobs have their verdicts: another run of that id would end by them, and measure nothing."""
    store.nodes.add(fleet.new_node())
    first = datetime.datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=datetime.UTC)
    fleet.begin(run_after=first)
    fleet.begin(run_after=first.astimezone(datetime.timezone(datetime.timedelta(hours=2))))
    store.leases.release(RunKey(fleet.DAG, "gpu-0001__new"), "over")
    with illegal(Refusal.ANOTHER_RUN):
        fleet.begin(run_after=first + datetime.timedelta(microseconds=1))
    store.adoption.replace("gpu-0001", "Ada", "another board", host_key=fleet.host_key("other"))
    with illegal(Refusal.ANOTHER_RUN):
        fleet.begin(run_after=first)
    fleet.begin(run_id="another")


@pytest.mark.both_dialects
def test_runs_of_two_dags_with_one_id_are_both_reached() -> None:
    store.nodes.add(fleet.new_node())
    fleet.fail()
    first, again = RunKey(fleet.DAG, "gpu-0001__new"), RunKey(NODE_REVALIDATION, "gpu-0001__new")
    assert store.runs.by_id(first.run_id).key == first
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move("gpu-0001", state, "Ada", "GPU 3 is another one")
    store.runs.begin(again, "gpu-0001", "short", "new")
    with pytest.raises(UnknownRun) as refused:
        store.runs.by_id(first.run_id)
    assert all(str(key) in str(refused.value) for key in (first, again))
    assert [store.runs.by_id(str(key)).key for key in (first, again)] == [first, again]


def test_a_cleared_run_keeps_its_fail_until_the_stage_is_measured_again() -> None:
    store.nodes.add(fleet.new_node())
    fleet.fail()
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move("gpu-0001", state, "Ada", "GPU 3 is another one")
    fleet.begin()
    assert [each.verdict for each in store.verdicts.latest("gpu-0001")] == [Verdict.FAIL]
