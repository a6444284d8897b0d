"""A person's decision on a node: what is asked, what each answer does, and what it takes for an answer to count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from muster import store
from muster.errors import NodeLeased
from muster.model.nodes import NewNode
from muster.model.states import State
from muster.operators.lifecycle import admission
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
    assert admission.carry_out("n1", DAG_ID, "r", answer(option)) == option
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
    + [answer(name=name) for name in ("airflow", "Anonymous", "admin", "nobody", "root")],
)
def test_without_a_named_person_or_a_reason_moves_nothing(waiting: None, response: dict[str, Any]) -> None:
    for option in admission.OPTIONS:
        with pytest.raises(AirflowFailException):
            admission.carry_out("n1", DAG_ID, "r", {**response, "chosen_options": [option]})
    assert store.nodes.get("n1").state is State.QUALIFIED
    assert store.leases.live() == []


def test_what_went_wrong_while_the_person_thought_counts(waiting: None) -> None:
    store.nodes.move("n1", State.QUARANTINE, lives.PERSON, "it smokes")
    with pytest.raises(AirflowFailException):
        admission.carry_out("n1", DAG_ID, "r", answer())
    assert store.leases.live() == []


def test_a_node_that_a_run_holds_meanwhile_is_tried_again(waiting: None) -> None:
    store.leases.acquire("n1", "node_qualification", "n1__other")
    with caused(AirflowException, NodeLeased):
        admission.carry_out("n1", DAG_ID, "r", answer())
    assert [lease.run_id for lease in store.leases.live()] == ["n1__other"]
    assert store.nodes.get("n1").state is State.QUALIFIED


def test_no_person_answers_and_that_is_what_the_records_say(waiting: None) -> None:
    """What a real Airflow makes of a question's time-out is in test_live_airflow."""
    sentence = admission.unanswered("n1", DAG_ID, "r", whether="enters production")
    last = store.nodes.events("n1")[-1]
    assert (last.reason, last.from_state, last.to_state) == (sentence, State.QUALIFIED, State.QUALIFIED)
    assert store.verdicts.approvals("n1") == []
