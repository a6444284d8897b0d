"""The queue of scheduler changes: what the records decide reaches the scheduler, in order, whatever happens between.

The scheduler is the worked example of docs/extending.md, whose list is a file: removed, it is a scheduler that is down.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import records
from muster.admission import clusters, service
from muster.admission.backend import TEST_PREFIX, Seen
from muster.admission.entry import move
from muster.admission.idle_fleet import known
from muster.cli.check import of_controller
from muster.errors import BadScheduler, IllegalMove, LeftAlone, MusterError, Preempted, SchedulerDown
from muster.integration import closing
from muster.lifecycle.selection import choose
from muster.lifecycle.transitions import STAGES, State
from muster.operators import claims, provisional, qualification, revalidation
from muster.records import schedulers
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.support.node_list import NodeList

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE, THERE = "gpu-0001", "r1n1"
DAG = "node_revalidation"


def placed(node: str = NODE, there: str = THERE) -> None:
    records.add_node(fleet.new_node(node))
    records.place_on_scheduler(node, "alpha", there, "Ada", "rack 1")


def in_production() -> None:
    placed()
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")


def line(nodes: Path, there: str = THERE) -> str:
    return next(each for each in nodes.read_text().splitlines() if each.split(" ")[0] == there)


def test_a_new_node_is_closed_until_it_is_admitted(nodes: Path) -> None:
    placed()
    service.reconcile()
    assert "muster: registered" in line(nodes)
    fleet.qualify()
    assert "muster:" in line(nodes)
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert line(nodes) == THERE
    assert service.idle([NODE])[NODE].idle


def test_a_node_that_fails_before_its_admission_is_closed_for_what_failed(nodes: Path) -> None:
    placed()
    service.reconcile()
    assert line(nodes).endswith("muster: registered, not admitted yet")
    fleet.fail(NODE)
    service.carry_out(NODE)
    failed = line(nodes)
    assert "gpu3 is slow" in failed
    for state in (State.TRIAGE, State.REPAIR):
        move(NODE, state, "Ada", "another word")
    assert line(nodes) == failed, "what is wrong stays visible"


def test_a_node_that_a_reevaluation_fails_is_closed_at_once(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed()
    lease = fleet.begin()
    for stage in STAGES:
        fleet.do_stage(lease, stage, Verdict.PROVISIONAL if stage == "performance" else Verdict.PASS)
    records.finish_run(lease.dag_id, lease.run_id, Verdict.PROVISIONAL, "Not judged.")
    records.release_leases(lease.dag_id, lease.run_id, "over")
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert line(nodes) == THERE
    failed = fleet.judgement("performance", Verdict.FAIL, findings=(fleet.FINDING,))
    monkeypatch.setattr(provisional, "_final_verdicts", lambda *_: [(fleet.result("performance")[0], failed)])
    monkeypatch.setattr(provisional.mailing, "send_report", lambda *_, **__: "")
    assert list(provisional.reevaluate_provisional()) == [NODE]
    assert "muster:" in line(nodes)


def test_a_change_waits_while_the_scheduler_is_down_and_the_node_is_neither_admitted_nor_idle(nodes: Path) -> None:
    placed()
    service.reconcile()
    text = nodes.read_text()
    nodes.unlink()
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    place = records.scheduler_place(NODE)
    assert place
    assert (place.waits, place.admitted, place.attempts) == (True, False, 1)
    assert not service.idle([NODE])[NODE].idle
    with pytest.raises(MusterError):
        service.allocation(NODE)
    nodes.write_text(text)
    assert not service.idle([NODE])[NODE].idle, "the admission is not carried out yet"
    service.reconcile()
    assert line(nodes) == THERE
    assert service.idle([NODE])[NODE].idle


def test_of_changes_that_wait_only_the_last_is_carried_out(nodes: Path) -> None:
    in_production()
    nodes.rename(nodes.with_suffix(".away"))
    move(NODE, State.QUARANTINE, "Ada", "noise")
    move(NODE, State.TRIAGE, "Ada", "look")
    nodes.with_suffix(".away").rename(nodes)
    service.reconcile()
    assert line(nodes).endswith("muster: noise")


def test_a_foreign_drain_stays_and_is_shown(nodes: Path) -> None:
    in_production()
    nodes.write_text(f"{THERE} # alice: bad fan\n")
    (difference,) = service.reconcile()
    assert "alice: bad fan" in difference
    assert not service.idle([NODE])[NODE].idle
    move(NODE, State.QUARANTINE, "Ada", "noise")
    assert line(nodes).endswith("alice: bad fan")


def test_a_node_in_quarantine_that_somebody_opened_is_closed_again_and_a_person_is_asked(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    in_production()
    move(NODE, State.QUARANTINE, "Ada", "noise")
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    place = records.scheduler_place(NODE)
    assert "muster: noise" in line(nodes)
    assert place
    assert place.question
    assert [mail.key.split("/")[1:3] for mail in records.outbox_pending()] == [["drained again", NODE]]
    move(NODE, State.TRIAGE, "Ada", "seen")
    place = records.scheduler_place(NODE)
    assert place
    assert not place.question


def marks_lost(patch: pytest.MonkeyPatch, meanwhile: Callable[[], object] = lambda: None, **shown: Any) -> None:
    """The next look shows the nodes without marks; ``meanwhile`` happens directly after it."""
    real = NodeList.look

    def look(self: NodeList, names: Collection[str]) -> dict[str, Seen]:
        patch.setattr(NodeList, "look", real)
        seen = {name: dataclasses.replace(each, marked=False, **shown) for name, each in real(self, names).items()}
        meanwhile()
        return seen

    patch.setattr(NodeList, "look", look)


def test_housekeeping_opens_no_node_that_was_quarantined_while_it_looked(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    marks_lost(monkeypatch, lambda: move(NODE, State.QUARANTINE, "Ada", "noise"))
    service.reconcile()
    assert line(nodes).endswith("muster: noise")


def test_housekeeping_asks_about_no_node_that_returned_to_service_while_it_looked(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    move(NODE, State.QUARANTINE, "Ada", "noise")
    nodes.write_text(f"{THERE}\n")

    def repaired() -> None:
        for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
            move(NODE, state, "Ada", "repaired")
        fleet.qualify(NODE, "again")
        move(NODE, State.PRODUCTION, "Ada", "needed now")

    marks_lost(monkeypatch, repaired)
    service.reconcile()
    place = records.scheduler_place(NODE)
    assert place
    assert (line(nodes), place.question) == (THERE, "")


def test_lost_marks_that_cannot_be_set_now_wait_and_stop_nothing_else(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    placed("gpu-0002", "r1n2")
    fleet.qualify("gpu-0002")
    move("gpu-0002", State.QUARANTINE, "Ada", "noise")
    nodes.write_text(f"{THERE}\nr1n2\n")

    def refuse(*_: object) -> None:
        raise SchedulerDown("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(NodeList, "admit", refuse)
        marks_lost(patch)
        service.reconcile()
    place = records.scheduler_place(NODE)
    assert place
    assert (place.waits, place.last_error) == (True, "it does not answer")
    assert line(nodes, "r1n2").endswith("muster: noise")
    service.reconcile()
    place = records.scheduler_place(NODE)
    assert place
    assert place.admitted


def test_any_other_difference_is_shown_and_not_corrected(nodes: Path) -> None:
    placed()
    service.reconcile()
    nodes.write_text(f"{THERE}\n")
    for _ in range(2):
        (difference,) = service.reconcile()
        assert NODE in difference
    assert line(nodes) == THERE
    nodes.write_text("")
    assert service.reconcile() == [f"{NODE}: alpha does not know {THERE}"]


def test_a_node_in_shadow_mode_is_left_alone_until_it_is_verified(nodes: Path) -> None:
    records.adopt_nodes([], "Ada", "serves", enrol=[("", fleet.new_node())])
    records.place_on_scheduler(NODE, "alpha", THERE, "Ada", "rack 1")
    nodes.write_text(f"{THERE} # muster: from before\n")
    records.withdraw_for_test(NODE, "revalidation")
    (difference,) = service.reconcile()
    assert "shadow mode" in difference
    assert line(nodes).endswith("from before")
    records.verify_node(NODE, "Ada", "acceptance protocol 12")
    service.reconcile()
    assert line(nodes) == THERE


@pytest.mark.parametrize("when", ["before the drain", "after the drain"])
def test_a_controller_that_is_killed_while_it_changes_a_node_leaves_no_drain(
    nodes: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Killed: the claim of the change stays, and nothing is noted any more."""
    in_production()
    records.acquire_lease(NODE, "revalidation", "r1")
    records.withdraw_for_test(NODE, "revalidation r1")
    change = records.claim_change(NODE)
    assert change
    if when == "after the drain":
        clusters.backend_of("alpha").withdraw(THERE, change.why)
    records.release_leases("revalidation", "r1", "its run was gone")
    assert service.carry_out(NODE), "another process may still be at it"
    monkeypatch.setattr(schedulers, "CLAIM", 0)
    later = schedulers.access.now() + datetime.timedelta(minutes=10)
    monkeypatch.setattr(schedulers.access, "now", lambda: later)
    service.reconcile()
    assert line(nodes) == THERE
    place = records.scheduler_place(NODE)
    assert place
    assert place.admitted


def test_a_change_is_claimed_longer_than_its_scheduler_may_take(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "120")
    placed()
    assert records.claim_change(NODE)
    later = schedulers.access.now() + datetime.timedelta(minutes=20)
    monkeypatch.setattr(schedulers.access, "now", lambda: later)
    assert records.claim_change(NODE) is None


def test_a_change_that_is_superseded_while_it_is_carried_out_is_followed(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    real: Callable[..., None] = NodeList.withdraw

    def slow(self: NodeList, *change: object) -> None:
        real(self, *change)
        monkeypatch.setattr(NodeList, "withdraw", real)
        records.restore_place(NODE, "its run is over")

    monkeypatch.setattr(NodeList, "withdraw", slow)
    records.withdraw_for_test(NODE, "revalidation r1")
    assert service.carry_out(NODE) == ""
    assert line(nodes) == THERE


def test_the_test_job_of_a_cluster_that_left_the_settings_does_not_stop_the_others(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed()
    records.add_node(fleet.new_node("gpu-0002"))
    records.place_on_scheduler("gpu-0002", "beta", "r1n2", "Ada", "rack 1")
    records.note_test_job("gpu-0002", f"{TEST_PREFIX}1")
    service.reconcile()
    assert "muster: registered" in line(nodes)
    place = records.scheduler_place("gpu-0002")
    assert place
    assert place.test_job, "it is ended once the cluster is back"


class Jobs:
    """Test jobs of the list: each runs from its begin to its end. ``ended``: in order."""

    def __init__(self) -> None:
        self.running: dict[str, str] = {}
        self.ended: list[str] = []
        self.down = False
        self.asked = 0

    def check(self) -> None: ...

    def begin(self, node: str, job: str) -> None:
        self.running[job] = node
        assert list(self.running.values()).count(node) == 1

    def step(self, job: str) -> tuple[str, ...] | None:
        return ("step", job) if job in self.running else None

    def end(self, job: str) -> None:
        self.asked += 1
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


@pytest.mark.parametrize("closed", [False, True])
def test_a_node_in_shadow_mode_is_tested_only_while_another_keeps_it_closed(nodes: Path, closed: bool) -> None:
    """Muster closes none of these."""
    records.adopt_nodes([], "Ada", "serves", enrol=[("", fleet.new_node())])
    records.place_on_scheduler(NODE, "alpha", THERE, "Ada", "rack 1")
    if closed:
        nodes.write_text(f"{THERE} # alice: muster:verify\n")
    before = nodes.read_text()
    with contextlib.nullcontext() if closed else pytest.raises(LeftAlone):
        service.withdraw_for_test(NODE, "revalidation r1")
    assert nodes.read_text() == before


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


@pytest.mark.parametrize("leased", [False, True])
def test_a_place_stays_while_a_run_tests_its_node(nodes: Path, leased: bool) -> None:
    placed()
    if leased:
        fleet.begin(NODE)
    else:
        fleet.qualify()
        move(NODE, State.PRODUCTION, "Ada", "needed now")
        lease = fleet.begin(NODE, "again")
        fleet.do_stage(lease, "intake")
        records.release_leases(lease.dag_id, lease.run_id, "over")
        assert records.get_node(NODE).state is State.REVALIDATION
    for cluster, there in (("alpha", "r1n2"), ("", "")):
        with pytest.raises(IllegalMove):
            records.place_on_scheduler(NODE, cluster, there, "Ada", "rack 2")
    assert [place.name for place in records.scheduler_places()] == [THERE]


def test_bad_places_are_one_sentence_and_change_nothing(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed()
    records.add_node(fleet.new_node("gpu-0002"))
    for cluster, name in (("alpha", "r9n9"), ("beta", THERE)):
        with pytest.raises(BadScheduler):
            clusters.check(cluster, [name])
    with pytest.raises(BadScheduler, match=NODE):
        records.place_on_scheduler("gpu-0002", "alpha", THERE, "Ada", "x")
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    with pytest.raises(IllegalMove):
        records.place_on_scheduler(NODE, "alpha", "r1n2", "Ada", "x")
    assert [place.name for place in records.scheduler_places()] == [THERE]
    nodes.write_text("r1n2\n")
    marks = {item.item: item.mark for item in of_controller(NODE)}
    assert marks == {"scheduler": "missing", "signing key": "ok"}


def test_a_cluster_that_shows_what_cannot_be_read_stops_no_other(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes count as not idle, and its changes wait."""
    in_production()
    records.add_node(fleet.new_node("gpu-0002"))
    fleet.qualify("gpu-0002")
    move("gpu-0002", State.PRODUCTION, "Ada", "needed now")

    def lie(*_: object) -> None:
        raise KeyError("spec")

    for method in ("look", "withdraw"):
        monkeypatch.setattr(NodeList, method, lie)
    answers = service.idle([NODE, "gpu-0002"])
    assert (answers[NODE].idle, answers["gpu-0002"].idle) == (False, True)
    move(NODE, State.QUARANTINE, "Ada", "noise")
    assert any("alpha" in line for line in service.reconcile())
    place = records.scheduler_place(NODE)
    assert place
    assert (place.waits, bool(place.last_error)) == (True, True)


def test_a_cluster_that_is_down_is_asked_to_end_one_test_job_only(nodes: Path, jobs: Jobs) -> None:
    """Each question takes its whole deadline, and the changes of other clusters wait behind it."""
    placed()
    placed("gpu-0002", "r1n2")
    for node in (NODE, "gpu-0002"):
        records.note_test_job(node, f"{TEST_PREFIX}{node}")
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
        revalidation.conclude(DAG, "r1")
    qualification.release(DAG, "r1")
    assert records.get_node(NODE).state is State.REVALIDATION
    used = Seen(open=False, ours=True, used_by="job 7 of alice")
    monkeypatch.setattr(NodeList, "look", lambda self, names: dict.fromkeys(names, used))

    def chosen() -> list[str]:
        return [each.node for each in choose(**known(records.list_nodes(), datetime.datetime.now(datetime.UTC))).chosen]

    assert chosen() == [NODE]
    with pytest.raises(AirflowSkipException):
        revalidation.claim(DAG, "r2", {"node": NODE, "level": "demo"})
    assert chosen() == []


def test_no_job_is_ended_for_corrupted_data_that_a_person_waived(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_production()
    fleet.fail(NODE, "bad", fleet.finding(metric="gemm_mismatches"))
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        move(NODE, state, "Ada", "repaired")
    (found,) = {each.finding.id for each in records.open_findings(NODE)}
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
    records.waive_finding(found, until, "Ada", "the probe was wrong")
    fleet.qualify(NODE, "again")
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    ended: list[str] = []
    monkeypatch.setattr(NodeList, "end_jobs", lambda self, name: ended.append(name) or [])
    move(NODE, State.QUARANTINE, "Ada", "noise")
    assert "muster: noise" in line(nodes)
    assert ended == []


def test_a_test_that_a_person_forces_on_an_open_node_is_not_preempted(nodes: Path) -> None:
    in_production()
    lease = fleet.begin(NODE, "forced", forced="asked by its user")
    fleet.do_stage(lease, "intake", Verdict.INCONCLUSIVE)
    assert line(nodes) == THERE
    with pytest.raises(AirflowFailException):
        qualification.conclude(lease.dag_id, lease.run_id)
    assert records.get_run(lease.dag_id, lease.run_id).verdict is Verdict.INCONCLUSIVE
