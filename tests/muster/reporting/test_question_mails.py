"""Questions to people are mailed once, each of them."""

from __future__ import annotations

import pytest

from muster import store
from muster.model.runs import RunKey
from muster.reporting import notices
from tests.muster import fleet
from tests.muster.reporting.rules import queued

pytestmark = pytest.mark.usefixtures("fleet_db", "no_server")


@pytest.fixture(autouse=True)
def reader(no_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")


def asked(node: str, run: str) -> None:
    store.nodes.add(fleet.new_node(node))
    about = store.questions.newest(node)
    store.questions.put(RunKey("admission", run), node, about, f"Admit {node}?", ["Admit", "RMA"])


def test_new_questions_are_one_mail_each_told_once() -> None:
    assert notices.tell_of_questions() == []
    asked("a", "r1")
    asked("b", "r2")
    assert notices.tell_of_questions() == ["a", "b"]
    assert notices.tell_of_questions() == []
    ((to, subject, text),) = queued()
    assert to == "ops@example.org"
    assert "a" in subject
    for run in ("r1", "r2"):
        assert f"muster approve {run} --option" in " ".join(text.split())
    asked("c", "r3")
    assert notices.tell_of_questions() == ["c"]
    assert len(queued()) == 2


def test_a_question_that_is_answered_or_outdated_is_not_mailed() -> None:
    asked("a", "r1")
    asked("b", "r2")
    store.questions.answer(RunKey("admission", "r1"), "Admit", "Ada", "fine")
    fleet.fail("b")
    assert notices.tell_of_questions() == []


@pytest.mark.both_dialects
@pytest.mark.parametrize("sent", [False, True])
def test_a_run_that_asks_again_sends_another_mail_and_takes_no_question_out_of_the_first(sent: bool) -> None:
    asked("a", "r1")
    asked("b", "r2")
    notices.tell_of_questions()
    first = [(each.id, store.outbox.message(each.id)) for each in store.outbox.pending()]
    if sent:
        for each in first:
            store.outbox.sent(*each)
    fleet.qualify("a")
    asked("a", "r1")
    asked("c", "r3")
    assert notices.tell_of_questions() == ["a", "c"]
    waiting = [(each.id, store.outbox.message(each.id)) for each in store.outbox.pending()]
    assert len(waiting) == 1 + (not sent)
    assert sent or waiting[0] == first[0]
    for run in ("r1", "r3"):
        assert f"muster approve {run} --option".encode() in b" ".join(waiting[-1][1].split())
