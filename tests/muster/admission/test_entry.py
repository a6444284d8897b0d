"""Into production through the records: by itself on everything, by a person on their name, never past a refusal."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from muster import store
from muster.admission import answers, changes, service
from muster.admission.entry import admit, admit_by
from muster.errors import NodeLeased, Refusal
from muster.model.events import Evidence
from muster.model.runs import RunKey
from muster.model.stages import CLUSTER_STAGES, STAGES
from muster.model.states import State
from muster.rules.lifecycle.gate import Admit, NeedsPerson, Refuse
from muster.store.database.engine import writing
from muster.store.database.models import NodeRow
from muster_criteria.model import Verdict
from tests.muster import copied, fleet
from tests.support.refusals import illegal

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"
MOVED = next(iter(answers._AFTER))


@pytest.fixture(autouse=True)
def short_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")


def qualified(stage: str = "", verdict: Verdict = Verdict.PASS, driver: str = "580.1") -> None:
    copied.records(_qualified, stage, verdict, driver)


def _qualified(stage: str, verdict: Verdict, driver: str) -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    for each in ("intake", "burn_in", "integrity", "performance", "thermal"):
        fleet.do_stage(lease, each, verdict if each == stage else Verdict.PASS, environment={"driver": driver})
    store.runs.finish(lease.key, verdict, "so it ended")
    store.leases.release(lease.key, "over")


def validated(verdict: Verdict = Verdict.PASS) -> None:
    """A cluster run that holds the node still, its verdict given."""
    store.leases.acquire_all([NODE], RunKey("cluster", "run"))
    store.runs.begin(RunKey("cluster", "run"), NODE, "short", "block 7", required_stages=CLUSTER_STAGES)
    lease = store.leases.get(NODE)
    assert lease is not None
    fleet.do_stage(lease, *CLUSTER_STAGES, verdict, environment={"driver": "580.1"})
    store.runs.finish(RunKey("cluster", "run"), verdict, "so it ended", node=NODE)


def test_a_node_that_passed_everything_enters_and_twice_is_harmless() -> None:
    qualified()
    assert isinstance(store.admission.decision(NODE), NeedsPerson)
    validated()
    assert admit(NODE, RunKey("cluster", "run")) == Admit()
    assert admit(NODE, RunKey("cluster", "run")) == Admit()
    assert store.nodes.get(NODE).state is State.PRODUCTION
    event = store.nodes.events(NODE)[-1]
    assert (event.actor, event.evidence["verdict"], event.evidence["full_coverage"]) == ("muster", "PASS", True)


@pytest.mark.parametrize("tested", ["alone", "in a block", "in shadow mode"])
def test_a_person_lets_no_node_into_production_while_a_test_holds_it(tested: str) -> None:
    """Its users would share it with the load, and the next stage would take it out again."""
    if tested == "in shadow mode":
        store.adoption.adopt([], "Ada", "it serves", enrol=[("", fleet.new_node())])
    else:
        qualified()
    if tested == "alone":
        admit_by(NODE, "Ada", "needed now")
    holder = RunKey("cluster", "run") if tested == "in a block" else RunKey(fleet.DAG, "again")
    store.leases.acquire(NODE, holder)
    store.runs.begin(holder, NODE, "short", "again", required_stages=STAGES)
    store.runs.begin_stage(holder, *CLUSTER_STAGES if tested == "in a block" else STAGES[:1])
    before, approvals = store.nodes.get(NODE), store.verdicts.approvals(NODE)
    asked = RunKey("admission", "asked")
    for decision in (None, asked):
        with pytest.raises(NodeLeased, match=holder.run_id):
            admit_by(NODE, "Ada", "users need it", run=decision)
    assert (store.nodes.get(NODE), store.verdicts.approvals(NODE)) == (before, approvals)
    store.leases.release(holder, "over")
    store.leases.acquire(NODE, asked, decision=True)
    admit_by(NODE, "Ada", "users need it", run=asked)
    assert store.nodes.get(NODE).state is State.PRODUCTION


def test_a_decision_that_is_not_made_leaves_no_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller dies between the approval and the move: neither is there, so the question is still open."""
    qualified(verdict=Verdict.WARN, stage="thermal")

    def dies(*_: object, **__: object) -> None:
        raise ConnectionError("killed here")

    for option, decide in (("admit", admit_by), ("quarantine", lambda *given: answers.carry_out(MOVED, *given))):
        with monkeypatch.context() as patch:
            patch.setattr(store.nodes, "move", dies)
            with pytest.raises(ConnectionError):
                decide(NODE, "Ada", "known")
        assert store.verdicts.approvals(NODE) == [], option
    admit_by(NODE, "Ada", "known")
    assert [each.person for each in store.verdicts.approvals(NODE)] == ["Ada"]


def test_what_passed_with_another_driver_enters_by_a_person_only() -> None:
    """No certificate could attest it by the tests alone, and without one nothing enters."""
    qualified(driver="570.1")
    validated()
    assert isinstance(admit(NODE, RunKey("cluster", "run")), NeedsPerson)
    with illegal(Refusal.GATE):
        store.nodes.move(NODE, State.PRODUCTION, "muster", "the block passed", Evidence(run=RunKey("cluster", "run")))
    store.leases.release(RunKey("cluster", "run"), "over")
    admit_by(NODE, "Ada", "the driver is known")
    assert store.certificates.uncertified() == {}


def test_simulated_results_of_a_real_node_open_nothing() -> None:
    """A node may send what it likes: only a person says that it is simulated, and then it is no real node's pass."""
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    for stage in STAGES:
        parsed, raw = fleet.result(stage, node=NODE, simulated=True)
        store.runs.begin_stage(lease.key, stage)
        fleet.record(lease.key, parsed, fleet.judgement(stage, simulated=True), raw)
    store.runs.finish(lease.key, Verdict.PASS, "so it ended")
    store.leases.release(lease.key, "over")
    assert not store.nodes.get(NODE).simulated
    validated()
    assert isinstance(admit(NODE, RunKey("cluster", "run")), NeedsPerson)
    assert store.nodes.get(NODE).state is not State.PRODUCTION


def test_a_warning_needs_a_person_who_is_recorded() -> None:
    qualified("thermal", Verdict.WARN)
    validated()
    decision = admit(NODE, RunKey("cluster", "run"))
    assert isinstance(decision, NeedsPerson)
    assert store.nodes.get(NODE).state is State.CLUSTER_VALIDATION
    for person, reason in (("airflow", "fine"), ("Ada", "")):
        with illegal(Refusal.PERSON):
            admit_by(NODE, person, reason)
    link = "http://airflow/hitl"
    store.leases.release(RunKey("cluster", "run"), "over")
    node = admit_by(NODE, "Ada", "warm aisle, known", link=link, run=RunKey("admission", "asked"))
    assert node.state is State.PRODUCTION
    (approval,) = store.verdicts.approvals(NODE)
    assert (approval.person, approval.option, approval.link) == ("Ada", "admit", link)
    assert store.nodes.events(NODE)[-1].evidence == {"person": "Ada", "reason": "warm aisle, known"}


def test_a_run_tells_where_its_node_went_after_its_verdict() -> None:
    """The verdict comes first, then the gate's or a person's word on it, then the node is let go."""
    qualified()
    validated()
    assert store.runs.get(RunKey("cluster", "run"), node=NODE).state_after is State.CLUSTER_VALIDATION
    admit(NODE, RunKey("cluster", "run"))
    assert store.runs.get(RunKey("cluster", "run"), node=NODE).state_after is State.PRODUCTION


def test_a_run_whose_node_waits_for_a_person_tells_where_it_waits() -> None:
    qualified("thermal", Verdict.WARN)
    validated()
    admit(NODE, RunKey("cluster", "run"))
    store.leases.release(RunKey("cluster", "run"), "over")
    assert store.runs.get(RunKey("cluster", "run"), node=NODE).state_after is State.QUALIFIED


def test_the_pass_of_a_block_opens_nothing_for_a_node_that_qualified_on_less() -> None:
    """Even for a program that does not ask the gate: the records themselves look the node's own verdicts up."""
    qualified("thermal", Verdict.WARN)
    validated()
    claimed = Evidence(run=RunKey("cluster", "run"), verdict=Verdict.PASS, full_coverage=True)
    with illegal(Refusal.EVIDENCE):
        store.nodes.move(NODE, State.PRODUCTION, "muster", "the block passed", claimed)


def test_no_program_enters_what_a_person_has_to_decide_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """All passed with full coverage, by a run that holds the node, and too long ago: the gate asks a person."""
    qualified()
    validated()
    monkeypatch.setenv("MUSTER_ADMISSION_MAX_AGE_HOURS", "1e-9")
    with illegal(Refusal.GATE):
        store.nodes.move(NODE, State.PRODUCTION, "muster", "the block passed", Evidence(run=RunKey("cluster", "run")))
    assert store.nodes.get(NODE).state is State.CLUSTER_VALIDATION


def test_what_is_refused_no_person_admits() -> None:
    qualified()
    validated(Verdict.FAIL)
    assert isinstance(store.admission.decision(NODE), Refuse)
    with illegal(Refusal.GATE):
        admit_by(NODE, "Ada", "I need it")
    assert store.verdicts.approvals(NODE) == []


def test_a_person_admits_an_adopted_node_for_good() -> None:
    store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node())])
    assert isinstance(store.admission.decision(NODE), NeedsPerson)
    assert not admit_by(NODE, "Ada", "acceptance protocol 12").shadow


def test_without_a_scheduler_state_and_label_decide_whether_a_node_is_in_use() -> None:
    def shown() -> tuple[bool, bool]:
        return bool(service.allocation(NODE)), service.idle([NODE])[NODE].idle

    qualified()
    assert shown() == (False, False)
    validated()
    admit(NODE, RunKey("cluster", "run"))
    assert shown() == (True, False)
    store.leases.release(RunKey("cluster", "run"), "over")
    assert shown() == (True, True)
    for label, busy in (("Training 7", True), ("no", False), ("", False)):
        store.nodes.add(fleet.new_node(labels={"busy": label}))
        assert shown() == (busy, not busy)


def test_a_person_is_told_which_hold_and_which_shadow_mode_the_acceptance_of_a_serving_node_ends() -> None:
    qualified("thermal", Verdict.WARN)
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "known", Evidence(person="Ada", reason="known"))
    for shadow, held, sentence in (
        (False, "", "what is known of it in production is accepted"),
        (False, "dag/r", "what is known of it in production is accepted; the verdict is no longer held"),
        (True, "", "what is known of it in production is accepted, and its shadow mode ends"),
    ):
        with writing() as session:
            session.execute(update(NodeRow).values(shadow=shadow, held_run=held))
        (state, *_) = answers.effects(answers.ADMIT, store.nodes.get(NODE))
        assert state.endswith("findings stay open") is bool(held)
        assert changes.move(NODE, State.PRODUCTION, "Ada", "looked at", dry_run=False).sentence == sentence
        node = store.nodes.get(NODE)
        assert not node.shadow
        assert not node.held_run
