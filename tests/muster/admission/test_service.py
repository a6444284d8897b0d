"""The queue of scheduler changes: what the records decide reaches the scheduler, in order, whatever happens between.

The scheduler is the worked example of docs/extending.md, whose list is a file: removed, it is a scheduler that is down.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster import store
from muster.admission import clusters, service
from muster.admission.backend import TEST_PREFIX, Seen
from muster.admission.carrying import mark_of
from muster.admission.entry import move
from muster.admission.startable import startable
from muster.cli.node.check import of_controller
from muster.errors import BadScheduler, LeftAlone, MusterError, NeverClosed, Refusal
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.operators import provisional
from muster.operators.lifecycle import repair
from muster.operators.testing import claims
from muster.store.queues import schedulers
from muster_criteria.model import Severity, Verdict
from tests.muster import fleet
from tests.muster.admission.listed import NODE, THERE, in_production, line, placed
from tests.support.node_list import NodeList
from tests.support.refusals import illegal

pytestmark = pytest.mark.usefixtures("fleet_db")

HOUR = datetime.timedelta(hours=1)


def test_a_new_node_is_closed_until_it_is_admitted(nodes: Path) -> None:
    placed()
    service.reconcile()
    assert "muster: registered" in line(nodes)
    fleet.qualify()
    assert "muster:" in line(nodes)
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert line(nodes) == THERE
    assert service.idle([NODE])[NODE].idle


def test_an_admission_rests_on_no_test_whose_certificate_was_revoked(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PASS that waits for its scheduler, and then a FAIL that the circuit breaker holds: no drain of a person that
    requests a test is lifted."""
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")
    monkeypatch.setenv("MUSTER_BREAKER_SHARE", "0.01")
    in_production()
    lease = fleet.begin(NODE, "whole", dag_id="node_revalidation")
    for stage in STAGES:
        fleet.do_stage(lease, stage)
    store.runs.finish(lease.key, Verdict.PASS, "It passed.")
    store.leases.release(lease.key, "over")
    passed = mark_of(NODE)
    assert passed.tested_since
    lease = fleet.begin(NODE, "second", dag_id="node_revalidation")
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.finding(severity=Severity.CRITICAL),))
    assert store.runs.finish(lease.key, Verdict.FAIL, "gpu3 corrupts data").state_after is State.PRODUCTION
    mark = mark_of(NODE)
    assert (mark.certificate, mark.tested_since, mark.verdict) == (passed.certificate, None, "revoked")
    asked = Seen(open=False, foreign="alice: ECC? muster:verify", foreign_since=passed.tested_since - HOUR)
    assert not asked.stays_closed(passed)
    assert asked.stays_closed(mark)
    assert not Seen(open=False, booted=asked.foreign_since).proved(mark.tested_since)


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
    store.runs.finish(lease.key, Verdict.PROVISIONAL, "Not judged.")
    store.leases.release(lease.key, "over")
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert line(nodes) == THERE
    failed = fleet.judgement("performance", Verdict.FAIL, findings=(fleet.FINDING,))
    standing = store.waivers.standing_at(NODE, datetime.datetime.now(datetime.UTC))
    replaced = store.reevaluations.Replacement(fleet.result("performance")[0], failed, standing)
    monkeypatch.setattr(provisional, "_final_verdicts", lambda *_: [replaced])
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
    place = store.schedulers.place(NODE)
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


def test_a_node_in_shadow_mode_is_left_alone_until_it_is_verified(nodes: Path) -> None:
    store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node())])
    store.schedulers.assign(NODE, "alpha", THERE, "Ada", "rack 1")
    nodes.write_text(f"{THERE} # muster: from before\n")
    store.schedulers.withdraw_for_test(NODE, "revalidation")
    with pytest.raises(NeverClosed):
        service.withdraw_for_test(NODE, "revalidation")
    (difference,) = service.reconcile()
    assert "shadow mode" in difference
    assert line(nodes).endswith("from before")
    store.adoption.verify(NODE, "Ada", "acceptance protocol 12")
    service.reconcile()
    assert line(nodes) == THERE


@pytest.mark.parametrize("when", ["before the drain", "after the drain"])
def test_a_controller_that_is_killed_while_it_changes_a_node_leaves_no_drain(
    nodes: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Killed: the claim of the change stays, and nothing is noted any more."""
    in_production()
    store.leases.acquire(NODE, RunKey("revalidation", "r1"))
    store.schedulers.withdraw_for_test(NODE, "revalidation r1")
    change = store.schedulers.claim(NODE)
    assert change
    if when == "after the drain":
        clusters.backend_of("alpha").withdraw(THERE, change.why)
    store.leases.release(RunKey("revalidation", "r1"), "its run was gone")
    assert service.carry_out(NODE), "another process may still be at it"
    monkeypatch.setattr(schedulers, "CLAIM", 0)
    later = schedulers.access.now() + datetime.timedelta(minutes=10)
    monkeypatch.setattr(schedulers.access, "now", lambda: later)
    service.reconcile()
    assert line(nodes) == THERE
    place = store.schedulers.place(NODE)
    assert place
    assert place.admitted


def test_a_change_is_claimed_longer_than_its_scheduler_may_take(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "120")
    placed()
    assert store.schedulers.claim(NODE)
    later = schedulers.access.now() + datetime.timedelta(minutes=20)
    monkeypatch.setattr(schedulers.access, "now", lambda: later)
    assert store.schedulers.claim(NODE) is None


def test_a_claim_by_a_clock_that_was_set_back_holds_no_change_up(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_production()
    now = schedulers.access.now()
    monkeypatch.setattr(schedulers.access, "now", lambda: now + datetime.timedelta(days=1))
    store.schedulers.withdraw_for_test(NODE, "revalidation r1")
    assert store.schedulers.claim(NODE)  # and its process is killed
    monkeypatch.setattr(schedulers.access, "now", lambda: now)
    assert service.carry_out(NODE) == ""
    assert "muster:" in line(nodes)


def test_a_change_that_is_superseded_while_it_is_carried_out_is_followed(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    real: Callable[..., None] = NodeList.withdraw

    def slow(self: NodeList, *change: object, **how: object) -> None:
        real(self, *change, **how)
        monkeypatch.setattr(NodeList, "withdraw", real)
        store.schedulers.restore(NODE, "its run is over")

    monkeypatch.setattr(NodeList, "withdraw", slow)
    store.schedulers.withdraw_for_test(NODE, "revalidation r1")
    assert service.carry_out(NODE) == ""
    assert line(nodes) == THERE


def test_the_test_job_of_a_cluster_that_left_the_settings_does_not_stop_the_others(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed()
    store.nodes.add(fleet.new_node("gpu-0002"))
    store.schedulers.assign("gpu-0002", "beta", "r1n2", "Ada", "rack 1")
    store.schedulers.note_test_job("gpu-0002", f"{TEST_PREFIX}1")
    service.reconcile()
    assert "muster: registered" in line(nodes)
    place = store.schedulers.place("gpu-0002")
    assert place
    assert place.test_job, "it is ended once the cluster is back"


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
        store.leases.release(lease.key, "over")
        assert store.nodes.get(NODE).state is State.REVALIDATION
    for cluster, there in (("alpha", "r1n2"), ("", "")):
        with illegal(Refusal.LEASED if leased else Refusal.STATE):
            store.schedulers.assign(NODE, cluster, there, "Ada", "rack 2")
    assert [place.name for place in store.schedulers.places()] == [THERE]


def test_a_node_keeps_a_place_that_may_still_give_it_to_users_unless_a_person_abandons_it(nodes: Path) -> None:
    in_production()
    nodes.unlink()
    move(NODE, State.REGISTERED, "Ada", "to the other cluster")
    for there in ("", "r1n2"):
        with illegal(Refusal.STATE):
            store.schedulers.assign(NODE, "alpha" if there else "", there, "Ada", "rack 2")
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    assert "muster: " in line(nodes)
    store.schedulers.assign(NODE, "alpha", "r1n2", "Ada", "rack 2")
    nodes.write_text("r1n2\n")
    service.carry_out(NODE)
    fleet.qualify(NODE, "again")
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    nodes.unlink()
    move(NODE, State.REGISTERED, "Ada", "its cluster is gone")
    assert store.schedulers.assign(NODE, "", "", "Ada", "its cluster is gone", abandon=True) is None


def test_a_name_that_its_scheduler_never_knew_can_be_corrected(nodes: Path) -> None:
    placed(there="r1n7")
    service.reconcile()
    place = store.schedulers.assign(NODE, "alpha", THERE, "Ada", "a typing error")
    assert place
    assert service.carry_out(NODE) == ""


def test_a_node_in_revalidation_that_somebody_opened_is_closed_and_tested(nodes: Path) -> None:
    in_production()
    lease = fleet.begin(NODE, "again")
    service.withdraw_for_test(NODE, "tested while idle")
    fleet.do_stage(lease, "intake")
    store.leases.release(lease.key, "over")
    assert store.nodes.get(NODE).state is State.REVALIDATION
    nodes.write_text(f"{THERE}\n")
    assert service.in_use(store.nodes.get(NODE)) == ""
    service.take_for_test(NODE, "node_revalidation r3", "revalidation", 3600.0)
    assert "muster: " in line(nodes)


def test_a_node_that_is_closed_and_down_is_tested_and_repaired(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else could prove a repair whose reboot took so long that its scheduler calls the node down."""
    in_production()
    move(NODE, State.QUARANTINE, "Ada", "noise")
    monkeypatch.setattr(NodeList, "look", lambda _, names: dict.fromkeys(names, Seen(False, ours=True, apart="down")))
    assert repair.allocated(store.nodes.get(NODE), None) == ("", "")
    move(NODE, State.REGISTERED, "Ada", "rebooted")
    claims.refuse_in_use([NODE], None)


def test_a_node_that_its_scheduler_does_not_know_is_tested_by_force_alone(nodes: Path) -> None:
    placed()
    nodes.write_text("")
    node, key = store.nodes.get(NODE), ("node_qualification", "r1", "short", "its place is new")
    with pytest.raises(MusterError):
        startable(node, *key, "")
    with pytest.raises(LeftAlone):
        claims.refuse_in_use([NODE], None)
    assert startable(node, *key, "it is on the bench")
    claims.refuse_in_use([NODE], "it is on the bench")


def test_a_node_in_revalidation_that_went_down_is_tested(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_production()
    lease = fleet.begin(NODE, "again")
    service.withdraw_for_test(NODE, "tested while idle")
    fleet.do_stage(lease, "intake")
    store.leases.release(lease.key, "over")
    monkeypatch.setattr(NodeList, "look", lambda _, names: dict.fromkeys(names, Seen(False, ours=True, apart="down")))
    assert service.in_use(store.nodes.get(NODE)) == ""
    service.take_for_test(NODE, "node_revalidation r3", "revalidation", 3600.0)


def test_bad_places_are_one_sentence_and_change_nothing(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed()
    store.nodes.add(fleet.new_node("gpu-0002"))
    for cluster, name in (("alpha", "r9n9"), ("beta", THERE)):
        with pytest.raises(BadScheduler):
            clusters.check(cluster, [name])
    with pytest.raises(BadScheduler):
        store.schedulers.assign("gpu-0002", "alpha", THERE, "Ada", "x")
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    with illegal(Refusal.STATE):
        store.schedulers.assign(NODE, "alpha", "r1n2", "Ada", "x")
    assert [place.name for place in store.schedulers.places()] == [THERE]
    nodes.write_text("r1n2\n")
    marks = {item.item: item.mark for item in of_controller(NODE)}
    assert marks == {"scheduler": "missing", "signing key": "ok"}


def test_no_job_is_ended_for_corrupted_data_that_a_person_waived(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_production()
    fleet.fail(NODE, "bad", fleet.finding(metric="gemm_mismatches"))
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        move(NODE, state, "Ada", "repaired")
    (found,) = {each.finding.id for each in store.verdicts.open_findings(NODE)}
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
    store.waivers.give(found, until, "Ada", "the probe was wrong")
    fleet.qualify(NODE, "again")
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    ended: list[str] = []
    monkeypatch.setattr(NodeList, "end_jobs", lambda self, name: ended.append(name) or [])
    move(NODE, State.QUARANTINE, "Ada", "noise")
    assert "muster: noise" in line(nodes)
    assert ended == []


@pytest.mark.parametrize("raised", [RuntimeError("odd"), OverflowError("out of range"), RecursionError(), OSError(5)])
def test_whatever_a_backend_raises_about_one_node_keeps_no_other_waiting(
    nodes: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    placed()
    store.nodes.add(fleet.new_node("gpu-0002"))
    store.schedulers.assign("gpu-0002", "alpha", "r1n2", "Ada", "joins")
    withdraw = NodeList.withdraw

    def odd(self: NodeList, name: str, *rest: Any, **how: Any) -> None:
        if name == "r1n1":
            raise raised
        withdraw(self, name, *rest, **how)

    monkeypatch.setattr(NodeList, "withdraw", odd)
    service.reconcile()
    first, other = store.schedulers.place(NODE), store.schedulers.place("gpu-0002")
    assert first is not None
    assert other is not None
    assert (first.waits, other.done) == (True, "withdrawn")
