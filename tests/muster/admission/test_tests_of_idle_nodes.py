"""Tests of idle nodes, as jobs of a scheduler or not: no stage runs on an open node, and no job of a test is left."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sqlalchemy import event

from muster import store
from muster.admission import clusters, service
from muster.admission.backend import TEST_PREFIX, Seen
from muster.admission.idle_fleet import known
from muster.admission.records_only import RecordsOnly
from muster.admission.startable import startable
from muster.errors import BadScheduler, LeftAlone, Preempted, SchedulerDown
from muster.integration import closing
from muster.model.nodes import Lease
from muster.model.runs import Job, RunKey
from muster.model.states import State
from muster.operators.lifecycle import revalidation
from muster.operators.testing import claims, qualification
from muster.remote.connection.ssh import RemoteError
from muster.remote.job import attempt, outcome
from muster.rules.idle.selection import choose
from muster.store.database.models import LeaseRow, NodeRow
from muster.store.database.outgoing import PlaceRow
from muster_criteria.model import Verdict
from muster_criteria.sku_files.model import SkuError
from tests.muster import fleet
from tests.muster.admission.listed import DAG, NODE, THERE, Jobs, in_production, line, placed, revalidate
from tests.support.node_list import NodeList

pytestmark = pytest.mark.usefixtures("fleet_db")


def test_a_node_that_its_test_job_leaves_in_revalidation_is_closed_when_the_run_is_over(
    nodes: Path, jobs: Jobs
) -> None:
    in_production()
    lease = revalidate()
    assert jobs.running
    fleet.do_stage(lease, "intake", Verdict.INCONCLUSIVE, findings=(fleet.finding(),))
    with pytest.raises(AirflowFailException):
        revalidation.conclude(RunKey(DAG, "r1"))
    assert (store.nodes.get(NODE).state, line(nodes)) == (State.REVALIDATION, THERE)
    qualification.release(RunKey(DAG, "r1"))
    assert "muster:" in line(nodes)


@pytest.mark.parametrize("closed", [False, True])
def test_a_node_in_shadow_mode_is_tested_only_while_another_keeps_it_closed(nodes: Path, closed: bool) -> None:
    """Muster closes none of these."""
    store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node())])
    store.schedulers.assign(NODE, "alpha", THERE, "Ada", "rack 1")
    if closed:
        nodes.write_text(f"{THERE} # alice: muster:verify\n")
    before = nodes.read_text()
    with contextlib.nullcontext() if closed else pytest.raises(LeftAlone):
        service.withdraw_for_test(NODE, "revalidation r1")
    assert nodes.read_text() == before


@pytest.mark.parametrize(("state", "hours", "opens"), [
    (outcome.RUNNING, 0, False), (outcome.UNSEEN, 0, False), (outcome.FINAL, 0, True), (outcome.RUNNING, 24, True),
])  # fmt: skip
def test_no_node_is_opened_under_a_test_that_could_not_be_stopped(
    nodes: Path, monkeypatch: pytest.MonkeyPatch, state: str, hours: int, opens: bool
) -> None:
    """The node side ends by itself at its deadline."""
    in_production()
    key = revalidate().key
    began = store.clock.now() - datetime.timedelta(hours=hours)
    job = Job(DAG, "r1", "intake", "1.0", state, "/srv/muster/jobs/1", started_at=began)
    store.runs.record_job(job)

    def away(*_: object, **__: object) -> None:
        raise RemoteError("no route to host")

    monkeypatch.setattr(attempt, "stop_leftovers", away)
    closing.release(key, "its process died")
    assert store.nodes.get(NODE).state is State.PRODUCTION
    for look in (lambda: service.carry_out(NODE), service.reconcile):
        look()
        assert (line(nodes) == THERE) is opens
    monkeypatch.setattr(attempt, "stop_leftovers", lambda *_, **__: store.runs.change_job(job, state=outcome.STOPPED))
    service.reconcile()
    assert line(nodes) == THERE


def test_a_job_whose_end_was_not_seen_keeps_no_node_closed_while_its_sku_file_is_broken(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    key = revalidate().key
    began = store.clock.now() - datetime.timedelta(days=90)
    store.runs.record_job(Job(DAG, "r1", "intake", "1.0", outcome.UNSEEN, "/srv/muster/jobs/1", started_at=began))

    def broken(*_: object) -> None:
        raise SkuError("no such file")

    monkeypatch.setattr("muster.admission.carrying.load_sku", broken)
    closing.release(key, "its process died")
    service.carry_out(NODE)
    assert line(nodes) == THERE


@pytest.mark.parametrize("down", [False, True])
def test_a_test_job_that_was_left_is_ended_before_another_begins(nodes: Path, jobs: Jobs, down: bool) -> None:
    in_production()
    revalidate()
    (left,) = jobs.running
    store.leases.release(RunKey(DAG, "r1"), "its process died")
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
    store.leases.release(RunKey(DAG, "r1"), "its process died")
    jobs.down = down
    with pytest.raises(SchedulerDown) if down else contextlib.nullcontext():
        claims.refuse_in_use([NODE], None)
    assert jobs.ended == ([] if down else [left])
    place = store.schedulers.place(NODE)
    assert place
    assert place.test_job == (left if down else "")


@pytest.mark.parametrize(("meanwhile", "raised"), [("", SchedulerDown), (" # alice: needed", LeftAlone)])
def test_a_job_that_does_not_start_waits_for_users_only_if_its_node_is_not_idle(
    nodes: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, meanwhile: str, raised: type[Exception]
) -> None:
    """Else the test would be put off for ever, and not shown."""
    in_production()

    def begin(*_: str) -> None:
        nodes.write_text(f"{THERE}{meanwhile}\n")
        raise LeftAlone("it did not start: 1 Insufficient cpu.")

    monkeypatch.setattr(jobs, "begin", begin)
    with pytest.raises(raised, match="Insufficient cpu"):
        revalidate()


@pytest.mark.parametrize("by", ["conclude", "claim", "reconcile", "release"])
def test_the_end_of_one_run_leaves_the_job_of_the_next(
    nodes: Path, jobs: Jobs, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run takes the node just after the first one's lease ended, or was found to have ended."""
    in_production()
    revalidate()

    if by == "release":
        released = closing.release

        def release(*given: object) -> list[str]:
            freed = released(*given)
            revalidate("r2")
            return freed

        monkeypatch.setattr(closing, "release", release)
        qualification.release(RunKey(DAG, "r1"))
    else:
        store.leases.release(RunKey(DAG, "r1"), "its process died")
    if by == "reconcile":
        live = store.leases.live

        def live_leases() -> list[Lease]:
            found = live()
            monkeypatch.setattr(store.leases, "live", live)
            revalidate("r2")
            return found

        monkeypatch.setattr(store.leases, "live", live_leases)
        service.reconcile()
    elif by != "release":
        revalidate("r2")
    if by == "conclude":
        with pytest.raises(AirflowFailException):
            revalidation.conclude(RunKey(DAG, "r1"))
    elif by == "claim":
        monkeypatch.setattr(service, "in_use", lambda node: "")
        monkeypatch.setattr(claims, "controller_ready", lambda: None)
        with pytest.raises(AirflowSkipException):
            revalidation.claim(RunKey(DAG, "r1"), {"node": NODE, "level": "demo"})
    place = store.schedulers.place(NODE)
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
    store.runs.begin_stage(RunKey(DAG, "r1"), "burn_in" if when == "after a stage" else "intake")
    with pytest.raises(Preempted):
        service.step_of_test(NODE)
    assert line(nodes) == THERE, "an idle test never drains"
    assert service.preempted(NODE)
    with pytest.raises(AirflowFailException):
        revalidation.conclude(RunKey(DAG, "r1"))
    qualification.release(RunKey(DAG, "r1"))
    assert (store.nodes.get(NODE).state, line(nodes)) == (State.PRODUCTION, THERE)
    place = store.schedulers.place(NODE)
    assert place
    assert not place.preempted


def test_no_stage_runs_on_a_node_that_somebody_opened_during_its_test(nodes: Path) -> None:
    in_production()
    revalidate()
    store.runs.begin_stage(RunKey(DAG, "r1"), "intake")
    assert service.step_of_test(NODE) == ()
    nodes.write_text(f"{THERE}\n")
    with pytest.raises(Preempted):
        service.step_of_test(NODE)
    store.leases.release(RunKey(DAG, "r1"), "its process died")
    revalidate("r2")
    assert "muster:" in line(nodes)
    assert not service.preempted(NODE)


def test_no_stage_runs_on_a_node_that_its_scheduler_has_under_another_name_by_now(nodes: Path) -> None:
    """There it may be open, and a user's."""
    in_production()
    revalidate()
    store.runs.begin_stage(RunKey(DAG, "r1"), "intake")
    assert service.step_of_test(NODE) == ()
    nodes.write_text("renamed\n")
    for begins in (lambda: service.step_of_test(NODE), lambda: service.withdraw_for_test(NODE, "revalidation r1")):
        with pytest.raises(SchedulerDown):
            begins()


@pytest.mark.parametrize("there", ["open", "closed by another", "away"])
def test_no_stage_runs_before_the_withdrawal_of_its_node_is_confirmed(nodes: Path, there: str) -> None:
    """As of a qualification that takes a node in service."""
    in_production()
    nodes.write_text(f"{THERE} # alice: fan\n" if there == "closed by another" else f"{THERE}\n")
    fleet.begin(NODE, "again")
    if there == "away":
        nodes.rename(nodes.with_suffix(".away"))
    store.runs.begin_stage(RunKey(fleet.DAG, "again"), "intake")
    refused = {"open": Preempted, "away": SchedulerDown}
    with pytest.raises(refused[there]) if there in refused else contextlib.nullcontext():
        assert service.step_of_test(NODE) == ()


@pytest.mark.parametrize("state", ["burn_in", "revalidation"])
def test_no_stage_begins_once_others_have_taken_the_closed_node(
    nodes: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """As for a reservation for maintenance that begins between two stages. A scheduler that is silent stops none."""
    if state == "revalidation":
        in_production()
        revalidate()
        store.runs.begin_stage(RunKey(DAG, "r1"), "intake")
    else:
        placed()
        fleet.do_stage(fleet.begin(), "intake")
    assert service.step_of_test(NODE) == ()
    with monkeypatch.context() as patched:
        away = Seen(open=False, ours=True, apart="in maintenance", worked_on="in maintenance")
        patched.setattr(NodeList, "look", lambda *_: {THERE: away})
        with pytest.raises(LeftAlone):
            service.step_of_test(NODE)
        assert not service.preempted(NODE)
    nodes.unlink()
    assert service.step_of_test(NODE) == ()


def test_a_cluster_that_is_down_is_asked_to_end_one_test_job_only(nodes: Path, jobs: Jobs) -> None:
    """Each question takes its whole deadline, and the changes of other clusters wait behind it."""
    placed()
    placed("gpu-0002", "r1n2")
    for node in (NODE, "gpu-0002"):
        store.schedulers.note_test_job(node, f"{TEST_PREFIX}{node}")
    jobs.down, jobs.asked = True, 0
    nodes.rename(nodes.with_suffix(".away"))
    service.reconcile()
    assert jobs.asked == 1


def test_a_node_that_waits_in_revalidation_and_is_in_use_leaves_the_others_their_turn(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's job may run on it for days."""
    monkeypatch.setattr(claims, "controller_ready", lambda: None)
    in_production()
    lease = revalidate()
    fleet.do_stage(lease, "intake", Verdict.INCONCLUSIVE, findings=(fleet.finding(),))
    with pytest.raises(AirflowFailException):
        revalidation.conclude(RunKey(DAG, "r1"))
    qualification.release(RunKey(DAG, "r1"))
    assert store.nodes.get(NODE).state is State.REVALIDATION
    used = Seen(open=False, ours=True, used_by="job 7 of alice")
    monkeypatch.setattr(NodeList, "look", lambda self, names: dict.fromkeys(names, used))

    def chosen() -> list[str]:
        return [each.node for each in choose(known(store.nodes.find(), datetime.datetime.now(datetime.UTC))).chosen]

    assert chosen() == [NODE]
    with pytest.raises(AirflowSkipException):
        revalidation.claim(RunKey(DAG, "r2"), {"node": NODE, "level": "demo"})
    assert chosen() == []


@pytest.mark.parametrize(
    ("level", "stages", "begins"),
    [("long", [], False), ("long", ["intake"], True), ("long", ["thermal"], True), ("standard", [], True)],
)
def test_a_test_that_its_scheduler_would_end_before_it_is_over_does_not_begin(
    nodes: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, level: str, stages: list[str], begins: bool
) -> None:
    """Each ``long`` test of a whole node was ended after a day, as inconclusive."""
    monkeypatch.setattr(claims, "controller_ready", lambda: None)
    in_production()
    params = {"node": NODE, "level": level, "stages": stages}
    with contextlib.nullcontext() if begins else pytest.raises(AirflowFailException):
        revalidation.claim(RunKey(DAG, "r1"), params)
    assert bool(jobs.running) is begins
    assert bool(store.leases.get(NODE)) is begins


@pytest.mark.parametrize("level", ["standard", "long"])
def test_a_test_that_its_scheduler_would_end_is_refused_before_it_is_started(
    nodes: Path, jobs: Jobs, level: str
) -> None:
    in_production()
    with contextlib.nullcontext() if level == "standard" else pytest.raises(BadScheduler):
        startable(store.nodes.get(NODE), DAG, "r1", level, "by hand", "")
    jobs.longest *= 5
    startable(store.nodes.get(NODE), DAG, "r1", level, "by hand", "")


def test_that_a_scheduler_lets_no_test_run_for_long_enough_is_found_before_one_is_due(nodes: Path, jobs: Jobs) -> None:
    clusters.check("alpha", [THERE])
    jobs.longest = 30
    with pytest.raises(BadScheduler):
        clusters.check("alpha", [THERE])


def test_a_test_that_a_person_forces_on_an_open_node_is_not_preempted(nodes: Path) -> None:
    in_production()
    lease = fleet.begin(NODE, "forced", forced="asked by its user")
    fleet.do_stage(lease, "intake", Verdict.INCONCLUSIVE)
    assert line(nodes) == THERE
    with pytest.raises(AirflowFailException):
        qualification.conclude(lease.key)
    assert store.runs.get(lease.key).verdict is Verdict.INCONCLUSIVE


def test_a_preemption_costs_nothing_also_where_the_run_was_not_concluded(nodes: Path, jobs: Jobs) -> None:
    in_production()
    fleet.do_stage(revalidate(), "intake", Verdict.INCONCLUSIVE)
    jobs.running.clear()
    assert service.preempted(NODE)
    closing.release(RunKey(DAG, "r1"), "its run was gone")
    node = store.nodes.get(NODE)
    assert (node.state, node.inconclusive) == (State.PRODUCTION, 0)
    assert store.runs.get(RunKey(DAG, "r1")).verdict is Verdict.SKIPPED


def test_what_is_asked_about_one_node_or_run_reads_no_other(nodes: Path) -> None:
    """Else each test of a fleet of thousands would read all of them, several times."""
    in_production()
    placed("gpu-0002", "r1n2")
    other, read = fleet.begin("gpu-0002"), set[str]()
    rows = [(PlaceRow, "node"), (LeaseRow, "node"), (NodeRow, "name")]
    notes = [lambda row, _context, name=name: read.add(getattr(row, name)) for _, name in rows]
    with contextlib.ExitStack() as listening:
        for (mapped, _), note in zip(rows, notes, strict=True):
            event.listen(mapped, "load", note)
            listening.callback(event.remove, mapped, "load", note)
        assert service.idle([NODE])[NODE].idle
        assert RecordsOnly().look([NODE])[NODE].open
        assert qualification.release(RunKey("node_revalidation", "another")) == []
    assert read == {NODE}
    assert store.leases.live(other.key) == store.leases.live() == [other]
