"""A person's decision on a node: what is asked, what each answer does, and what it takes for an answer to count."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from sqlalchemy import update

from muster import store
from muster.admission import answers
from muster.errors import IllegalMove, NodeLeased, Refusal
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.operators import upkeep
from muster.operators.lifecycle import admission
from muster.reporting import sending
from muster.settings import settings
from muster.store.database.engine import writing
from muster.store.database.models import NodeRow
from muster_criteria.model import Severity, Verdict
from tests.dags.conftest import dag_of
from tests.muster import fleet as values
from tests.support import lives
from tests.support.refusals import caused

DAG_ID = "admission"


@pytest.fixture
def waiting(fleet: Path) -> None:
    """A qualified node that was never validated with others."""
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "n1".ljust(43, "0")
    store.nodes.add(NewNode("n1", "127.0.0.1", key, "cpu-generic"))
    lives.qualified("n1", "standard")


def answer(option: str = "Admit", reason: str = "seen it myself", name: str | None = "Petra") -> dict[str, Any]:
    user = {"id": "7", "name": name} if name else None
    return {"chosen_options": [option], "params_input": {"decision_reason": reason}, "responded_by_user": user}


def put(node: str = "n1", dag_id: str = DAG_ID, run_id: str = "r") -> None:
    """The question of a run, about the node as it is now."""
    store.questions.put(RunKey(dag_id, run_id), node, store.questions.newest(node))


def given(
    response: dict[str, Any], operators: Any = admission, dag_id: str = DAG_ID, run_id: str = "r", node: str = "n1"
) -> str:
    """A question, its answer as Airflow delivers it, and what is carried out."""
    put(node, dag_id, run_id)
    admission.record_answer(RunKey(dag_id, run_id), response)
    return str(operators.carry_out(RunKey(dag_id, run_id)))


@pytest.mark.usefixtures("waiting")
def test_the_question_says_why() -> None:
    question = admission.look("n1")
    assert question["subject"] == "Admit n1 to production?"
    assert r"cluster\_validation" in question["body"], "as Markdown shows it"


def test_a_node_with_a_fault_is_not_even_asked_about(waiting: None) -> None:
    store.nodes.move("n1", State.QUARANTINE, lives.PERSON, "it smokes")
    with pytest.raises(AirflowFailException):
        admission.look("n1")


def test_a_node_that_is_in_already_needs_no_person(waiting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    store.nodes.move("n1", State.PRODUCTION, lives.PERSON, "so be it")
    monkeypatch.setattr(store.admission, "decision", lambda _: admission.Admit())
    with pytest.raises(AirflowSkipException):
        admission.look("n1")


@pytest.mark.parametrize(
    ("option", "state"),
    [("Admit", State.PRODUCTION), ("Re-test", State.QUALIFIED), ("RMA", State.RMA)],
)
def test_each_answer_is_carried_out_under_a_name(waiting: None, option: str, state: State) -> None:
    assert given(answer(option)) == option
    assert store.nodes.get("n1").state is state
    (approval,) = store.verdicts.approvals("n1")
    assert (approval.person, approval.option, approval.reason) == ("Petra", option, "seen it myself")
    assert approval.login == "airflow:Petra"
    assert {event.login for event in store.nodes.events("n1") if event.actor == "Petra"} == {"airflow:Petra"}
    assert approval.link.endswith("/dags/admission/runs/r/tasks/ask/required_actions")
    assert store.leases.live() == []


@pytest.mark.parametrize(
    "response",
    [answer(reason=" "), answer(name=None) | {"responded_by_user": None}]
    + [answer(name=name) for name in ("airflow", "Anonymous", "admin", "nobody", "root", "provisioner")],
)
def test_without_a_named_person_or_a_reason_moves_nothing(waiting: None, response: dict[str, Any]) -> None:
    for option in admission.OPTIONS:
        with pytest.raises(AirflowFailException):
            given({**response, "chosen_options": [option]}, run_id=option)
    assert store.nodes.get("n1").state is State.QUALIFIED
    assert store.leases.live() == []


@pytest.mark.parametrize("answered", [True, False])
def test_another_run_of_an_id_that_airflow_has_forgotten_takes_no_answer_of_the_first(
    waiting: None, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer the first is asked no more, so the other asks in its place, about the node as it is now."""
    monkeypatch.setattr(admission.HITLOperator, "execute", lambda *_: "asks")
    ask = dag_of(DAG_ID).get_task("ask")

    def execute(day: int) -> Any:
        after = datetime.datetime(2026, 7, day, tzinfo=datetime.UTC)
        run = SimpleNamespace(dag_id=DAG_ID, run_id="r", run_after=after, conf={"node": "n1"})
        context: Any = {"params": run.conf, "dag_run": run}
        return admission.AskOperator.execute.__wrapped__(ask, context)  # type: ignore[attr-defined]

    assert execute(1) == "asks"
    if answered:
        admission.record_answer(RunKey(DAG_ID, "r"), answer())
        assert execute(1) is None, "a retry asks no more"
        with pytest.raises(AirflowFailException, match="r of admission"):
            execute(2)
        return
    lives.qualified("n1", "long")
    assert store.questions.waiting() == []
    assert execute(2) == "asks"
    ((question, _),) = store.questions.waiting()
    assert question.run_id == "r"


@pytest.mark.usefixtures("waiting")
def test_a_run_that_is_cleared_asks_about_the_node_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer; after newer evidence, and after the question's time. A retry asks the same."""

    def waits() -> tuple[int, int, int]:
        return len(store.questions.waiting()), len(store.questions.unmailed()), len(store.questions.outdated())

    put()
    first = store.overview.version()
    assert waits() == (1, 1, 0)
    store.questions.note_mailed([RunKey(DAG_ID, "r")])
    put()
    assert (waits(), store.overview.version()) == ((1, 0, 0), first)
    lives.qualified("n1", "long")
    assert waits() == (0, 0, 1)
    before = store.overview.version()
    put()
    assert waits() == (1, 1, 0)
    assert store.overview.version() != before, "the Fleet page shows it"
    store.questions.note_mailed([RunKey(DAG_ID, "r")])
    later = store.clock.now() + datetime.timedelta(hours=settings().approval_hours)
    monkeypatch.setattr(store.clock, "now", lambda: later)
    assert waits() == (0, 0, 0)
    put()
    assert waits() == (1, 1, 0)
    store.questions.check(RunKey(DAG_ID, "r"))


def test_a_run_that_asks_again_waits_from_then_on(waiting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Airflow does, which begins the time of the question again."""
    now, most = store.clock.now(), datetime.timedelta(hours=settings().approval_hours)

    def waits(part: float) -> int:
        monkeypatch.setattr(store.clock, "now", lambda: now + part * most)
        return len(store.questions.waiting())

    put()
    assert waits(0.9) == 1
    put()
    assert (waits(1.8), waits(1.91)) == (1, 0)


@pytest.mark.parametrize(
    ("live", "known", "ended"),
    [("ab", "abc", ["c"]), ("", "a", ["a", "b", "c"]), ("", "", []), ("abc", "abc", [])],
)
def test_a_question_whose_run_is_over_is_open_no_more(waiting: None, live: str, known: str, ended: list[str]) -> None:
    """Marked, or deleted. Several of which this Airflow knows none may be another's."""
    for run_id in ("a", "b", "c", "answered"):
        put(run_id=run_id)
    admission.record_answer(RunKey(DAG_ID, "answered"), answer())

    def count(of: str) -> Callable[[str, Sequence[str]], int]:
        return lambda _, run_ids: len(set(of) & set(run_ids))

    assert [key.run_id for key in upkeep.end_questions(count(live), count(known))] == ended
    assert [run_id for run_id in "abc" if not store.questions.find(RunKey(DAG_ID, run_id))] == ended
    assert store.questions.find(RunKey(DAG_ID, "answered"))


def test_a_question_that_is_put_again_meanwhile_stays(waiting: None) -> None:
    put()
    (asked,) = store.questions.unanswered().items()
    put()
    assert not store.questions.drop(*asked)
    assert store.questions.waiting()


def test_what_went_wrong_while_the_person_thought_counts(waiting: None) -> None:
    put()
    store.nodes.move("n1", State.QUARANTINE, lives.PERSON, "it smokes")
    admission.record_answer(RunKey(DAG_ID, "r"), answer())
    with pytest.raises(AirflowFailException):
        admission.carry_out(RunKey(DAG_ID, "r"))
    assert store.leases.live() == []
    assert store.verdicts.approvals("n1") == []


def test_a_node_that_a_run_holds_meanwhile_is_tried_again(waiting: None) -> None:
    store.leases.acquire("n1", RunKey("node_qualification", "n1__other"))
    with caused(AirflowException, NodeLeased):
        given(answer())
    assert [lease.run_id for lease in store.leases.live()] == ["n1__other"]
    assert store.nodes.get("n1").state is State.QUALIFIED


def test_no_person_answers_and_that_is_what_the_records_say(waiting: None) -> None:
    """What a real Airflow makes of a question's time-out is in test_live_airflow."""
    sentence = admission.unanswered("n1", RunKey(DAG_ID, "r"), whether="enters production")
    last = store.nodes.events("n1")[-1]
    assert (last.reason, last.from_state, last.to_state) == (sentence, State.QUALIFIED, State.QUALIFIED)
    assert store.verdicts.approvals("n1") == []


class TestAnAnswerCountsOnce:
    """Whoever may start a run in Airflow may write its XComs, mark its tasks and clear them."""

    def test_what_nobody_answered_decides_nothing(self, waiting: None) -> None:
        for asked in (False, True):
            if asked:
                put()
            with pytest.raises(AirflowFailException):
                admission.carry_out(RunKey(DAG_ID, "r"))
        assert store.nodes.get("n1").state is State.QUALIFIED
        assert store.verdicts.approvals("n1") == []
        assert admission.asked_again(RunKey(DAG_ID, "r"), {"node": "n1"}) == []

    def test_the_first_answer_stays(self, waiting: None) -> None:
        put()
        admission.record_answer(RunKey(DAG_ID, "r"), answer("RMA"))
        assert given(answer("Admit", name="Mallory")) == "RMA"
        (approval,) = store.verdicts.approvals("n1")
        assert (approval.person, approval.option) == ("Petra", "RMA")

    def test_an_old_run_that_is_cleared_admits_no_node_again(self, waiting: None) -> None:
        assert given(answer()) == "Admit"
        store.nodes.move("n1", State.QUARANTINE, lives.PERSON, "it smokes")
        for _ in range(2):
            assert admission.carry_out(RunKey(DAG_ID, "r")) == "Admit", "it was carried out before"
        assert store.nodes.get("n1").state is State.QUARANTINE
        assert len(store.verdicts.approvals("n1")) == 1

    def test_newer_evidence_makes_an_answer_void(self, waiting: None) -> None:
        """A WARN that took the node out came after the question; one that serves has gone through a test since."""
        put()
        admission.record_answer(RunKey(DAG_ID, "r"), answer())
        lease = values.begin("n1", "n1__warned")
        values.do_stage(lease, "intake", Verdict.WARN, findings=(values.finding(severity=Severity.WARNING),))
        for stage in STAGES[1:]:
            values.do_stage(lease, stage)
        store.runs.finish(lease.key, Verdict.WARN, "gpu3 is slow.")
        store.leases.release(lease.key, "over")
        assert store.nodes.get("n1").state is State.QUALIFIED
        with caused(AirflowFailException, IllegalMove):
            admission.carry_out(RunKey(DAG_ID, "r"))
        assert store.nodes.get("n1").state is State.QUALIFIED
        assert store.verdicts.approvals("n1") == []
        assert [each["conf"]["node"] for each in admission.asked_again(RunKey(DAG_ID, "r"), {"node": "n1"})] == ["n1"]
        with pytest.raises(IllegalMove) as refused:
            answers.check("Admit", store.nodes.get("n1"), RunKey(DAG_ID, "r"))
        assert refused.value.code is Refusal.OUTDATED

    @pytest.mark.parametrize(("lost", "again"), [("Admit", 0), ("RMA", 1)])
    def test_an_answer_that_another_overtook_is_asked_for_again_unless_it_was_the_same(
        self, waiting: None, lost: str, again: int
    ) -> None:
        put()
        put(run_id="other")
        admission.record_answer(RunKey(DAG_ID, "r"), answer(lost))
        admission.record_answer(RunKey(DAG_ID, "other"), answer())
        admission.carry_out(RunKey(DAG_ID, "other"))
        with caused(AirflowFailException, IllegalMove):
            admission.carry_out(RunKey(DAG_ID, "r"))
        assert len(admission.asked_again(RunKey(DAG_ID, "r"), {"node": "n1"})) == again
        with writing() as session:  # adopted: in production, and admitted by no answer
            session.execute(update(NodeRow).values(shadow=True))
        assert len(admission.asked_again(RunKey(DAG_ID, "r"), {"node": "n1"})) == 1

    def test_the_lost_acceptance_of_a_node_that_serves_is_asked_for_again(self, waiting: None) -> None:
        assert given(answer()) == "Admit"
        put(run_id="serving")
        admission.record_answer(RunKey(DAG_ID, "serving"), answer())
        assert len(admission.asked_again(RunKey(DAG_ID, "serving"), {"node": "n1"})) == 1

    def test_a_worker_that_dies_leaves_the_whole_decision_or_none(
        self, waiting: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def dies(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(store.nodes, "move", dies)
            with pytest.raises(KeyboardInterrupt):
                given(answer())
        assert store.verdicts.approvals("n1") == []
        assert admission.carry_out(RunKey(DAG_ID, "r")) == "Admit"
        assert store.nodes.get("n1").state is State.PRODUCTION
        assert len(store.verdicts.approvals("n1")) == 1


@pytest.mark.usefixtures("waiting")
def test_a_new_question_is_mailed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "oncall@example.org")
    waited: list[int] = []
    monkeypatch.setattr(sending, "deliver_mail", lambda: waited.append(len(store.outbox.pending())))
    mail = dag_of("housekeeping").get_task("tell_of_questions").python_callable
    put()
    assert (mail(), waited) == (["n1"], [1])
    assert (mail(), waited) == ([], [1])
