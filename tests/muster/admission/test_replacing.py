"""A spare takes the place of a node that left production: proposed with its evidence, and admitted by the one gate."""

from __future__ import annotations

import pytest

from muster import store
from muster.admission.entry import move
from muster.errors import Refusal
from muster.judging import health
from muster.model.attention import Cause
from muster.model.events import Evidence
from muster.model.health import Report
from muster.model.runs import RunKey
from muster.model.stages import CLUSTER_STAGES
from muster.model.states import State
from muster.operators import upkeep
from muster.operators.lifecycle import sweep
from muster.operators.testing import block
from muster.reporting import notices
from muster.rules.service import replacing as rules
from muster.store.database import access
from muster_criteria.health.readings import Reading
from muster_criteria.model import Severity, Verdict
from tests.muster import copied, fleet
from tests.support.refusals import illegal

pytestmark = pytest.mark.usefixtures("fleet_db")

KEY = RunKey("cluster_qualification", "block 7")


@pytest.fixture(autouse=True)
def by_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
    monkeypatch.setenv("MUSTER_REPLACE_BY_ITSELF", "true")


def passed(*names: str, spare: str = "yes", block_verdict: Verdict = Verdict.PASS) -> None:
    """These nodes, each alone and all in a block; each spare stays qualified."""
    if store.nodes.find():
        _passed(spare, block_verdict, *names)
    else:
        copied.records(_passed, spare, block_verdict, *names)


def _passed(spare: str, block_verdict: Verdict, *names: str) -> None:
    for name in names:
        store.nodes.add(fleet.new_node(name, labels={"spare": spare, "block": "b1"}))
        fleet.qualify(name)
    store.leases.acquire_all(list(names), KEY)
    for name in names:
        store.runs.begin(KEY, name, "short", "block 7", required_stages=CLUSTER_STAGES)
        lease = store.leases.get(name)
        assert lease is not None
        fleet.do_stage(lease, *CLUSTER_STAGES, block_verdict)
        store.runs.finish(KEY, block_verdict, "so it ended", node=name)
    block.admit(KEY)
    store.leases.release(KEY, "over")


def serving(*names: str) -> None:
    if store.nodes.find():
        _serving(*names)
    else:
        copied.records(_serving, *names)


def _serving(*names: str) -> None:
    for name in names:
        store.nodes.add(fleet.new_node(name, labels={"block": "b1"}))
        fleet.qualify(name)
        move(name, State.PRODUCTION, "Ada", "needed now")


def state(name: str) -> State:
    return store.nodes.get(name).state


def test_a_spare_that_passed_stays_out_and_nobody_is_asked() -> None:
    passed("spare")
    assert state("spare") is State.QUALIFIED
    assert block.questions(KEY, "short") == []
    (shown,) = store.attention.collect()
    assert shown.cause is Cause.SPARE
    assert upkeep.replace_nodes() == []


def test_what_is_no_spare_enters_after_its_block_as_before() -> None:
    passed("usual", spare="")
    assert state("usual") is State.PRODUCTION


def test_the_spare_takes_the_place_of_a_node_that_left_and_only_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(notices, "notify", lambda about, sentence, **_of: told.append(about))
    serving("a", "b")
    passed("s1", "s2")
    move("a", State.QUARANTINE, "Ada", "it hangs")
    (proposed,) = [each for each in store.attention.collect() if each.cause is Cause.REPLACES]
    assert (proposed.node, proposed.command) == ("s1", "muster admit s1 --reason 'takes the place of a'")
    assert len(upkeep.replace_nodes()) == 1
    assert (state("s1"), state("s2")) == (State.PRODUCTION, State.QUALIFIED)
    assert told == ["replaced/a/s1"]
    event = store.nodes.events("s1")[-1]
    assert (event.actor, event.evidence["replaces"], event.evidence["full_coverage"]) == ("muster", "a", True)
    assert store.certificates.newest("s1") is not None
    assert upkeep.replace_nodes() == []


def test_no_spare_enters_without_its_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """What ends a process: nothing handles it."""

    def kill(*_: object, **_of: object) -> None:
        raise Killed

    serving("a")
    passed("s1")
    move("a", State.QUARANTINE, "Ada", "it hangs")
    monkeypatch.setattr(notices, "notify", kill)
    with pytest.raises(Killed):
        upkeep.replace_nodes()
    assert state("s1") is State.QUALIFIED


def test_a_spare_follows_in_the_sweep_that_withdraws_a_node_before_its_repair_can_begin() -> None:
    serving("a")
    passed("s1")
    seen = Reading("gpu_lost", "gpu3", bad=True)
    health.record([Report("a", "sweep", (seen,), "b1")], {"a": "h100-sxm-8"})
    withdrawn, replaced = sweep.act()
    assert withdrawn.startswith("a left service")
    assert replaced.startswith("s1 entered production in place of a")
    assert (state("a"), state("s1")) == (State.QUARANTINE, State.PRODUCTION)


def test_by_default_a_person_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_REPLACE_BY_ITSELF")
    serving("a")
    passed("s1")
    move("a", State.QUARANTINE, "Ada", "it hangs")
    assert upkeep.replace_nodes() == []
    assert state("s1") is State.QUALIFIED


@pytest.mark.parametrize("why", ["no block", "no spare", "stale"])
def test_a_node_that_the_gate_leaves_to_a_person_is_proposed_and_not_admitted(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving("a")
    if why == "stale":
        passed("s1")
        monkeypatch.setenv("MUSTER_ADMISSION_MAX_AGE_HOURS", "0.0000001")
    else:
        store.nodes.add(fleet.new_node("s1", labels={"spare": "yes"} if why == "no block" else {}))
        fleet.qualify("s1")
    move("a", State.QUARANTINE, "Ada", "it hangs")
    proposed = store.replacing.proposal_for("a")
    assert proposed is not None
    assert (proposed.spare, proposed.fitness.admitted) == ("s1", False)
    assert upkeep.replace_nodes() == []
    with illegal(Refusal.GATE):
        store.replacing.admit(proposed)
    assert state("s1") is State.QUALIFIED


def test_two_controllers_fill_one_place_once() -> None:
    serving("a")
    passed("s1", "s2")
    move("a", State.QUARANTINE, "Ada", "it hangs")
    proposed = store.replacing.proposal_for("a")
    assert proposed is not None
    store.replacing.admit(proposed)
    with illegal(Refusal.STATE):
        store.replacing.admit(proposed)
    assert state("s2") is State.QUALIFIED


def test_a_claim_to_replace_a_node_admits_none_through_another_door() -> None:
    passed("s1")
    claimed = Evidence(verdict=Verdict.PASS, full_coverage=True, replaces="a")
    with illegal(Refusal.EVIDENCE):
        store.nodes.move("s1", State.PRODUCTION, "muster", "so it says", claimed)


def test_what_is_tested_fell_out_of_service_or_is_asked_about_is_not_proposed() -> None:
    serving("a", "fell")
    move("fell", State.REGISTERED, "Ada", "to be tested")
    fleet.qualify("fell", "fell__again")
    passed("tested")
    move("a", State.QUARANTINE, "Ada", "it hangs")
    store.leases.acquire_all(["tested"], RunKey("cluster_qualification", "block 8"))
    assert store.replacing.proposal_for("a") is not None  # "fell" was tested again, and is as good as any
    assert store.replacing.proposal_for("a").spare == "fell"  # type: ignore[union-attr]


def test_a_node_that_a_warning_took_out_of_service_is_no_spare() -> None:
    serving("a", "warned")
    lease = fleet.begin("warned", "warned__again")
    fleet.do_stage(lease, "intake", Verdict.WARN, findings=(fleet.finding(severity=Severity.WARNING),))
    store.runs.finish(lease.key, Verdict.WARN, "gpu3 is slow.")
    store.leases.release(lease.key, "over")
    assert state("warned") is State.QUALIFIED
    move("a", State.QUARANTINE, "Ada", "it hangs")
    assert store.replacing.fell() == {"warned"}
    assert store.replacing.proposals() == []


def test_a_question_that_nobody_answered_in_time_disables_no_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    serving("a")
    passed("s1")
    move("a", State.QUARANTINE, "Ada", "it hangs")
    store.questions.put(RunKey("admission", "r"), "s1", store.questions.newest("s1"))
    assert store.replacing.proposals() == []
    monkeypatch.setenv("MUSTER_APPROVAL_HOURS", "0.000001")
    assert [each.spare for each in store.replacing.proposals()] == ["s1"]


def test_a_node_that_enters_another_cluster_fills_no_place() -> None:
    serving("a")
    store.schedulers.assign("a", "alpha", "a", "Ada", "it is there")
    passed("s1")
    store.schedulers.assign("s1", "alpha", "s1", "Ada", "it is there")
    move("a", State.QUARANTINE, "Ada", "it hangs")
    store.nodes.add(fleet.new_node("b"))
    store.schedulers.assign("b", "beta", "b", "Ada", "it is there")
    serving("b")
    assert [each.spare for each in store.replacing.proposals()] == ["s1"]


def test_a_node_that_comes_back_after_months_takes_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    serving("a", "b")
    passed("s1")
    with monkeypatch.context() as then:
        long_ago = access.now() - 2 * rules.PERIOD
        then.setattr(access, "now", lambda: long_ago)
        move("a", State.QUARANTINE, "Ada", "it hangs")
    move("b", State.QUARANTINE, "Ada", "it hangs")
    for step in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        move("a", step, "Ada", "repaired")
    fleet.qualify("a", "a__again")
    move("a", State.PRODUCTION, "Ada", "needed now")
    assert [(each.gone.node, each.spare) for each in store.replacing.proposals()] == [("b", "s1")]


def test_the_report_of_the_node_that_left_names_its_replacement() -> None:
    serving("a")
    passed("s1")
    lease = fleet.fail("a", "a__again")
    report = store.reporting.run(lease.key)
    assert report.state_after == State.QUARANTINE
    assert report.replacement.startswith("s1 ")
    assert report.replacement.endswith("muster admit s1 --reason 'takes the place of a'")
