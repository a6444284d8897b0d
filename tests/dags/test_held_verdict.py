"""Verdicts past the circuit breaker: the node goes on serving, the mail says so, and a person is asked once."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from muster import store
from muster.admission import service
from muster.errors import MusterError, NodeLeased
from muster.integration import runid
from muster.model.attention import Cause, Turn
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators import upkeep
from muster.operators.lifecycle import admission, held, revalidation
from muster.operators.testing import claims
from muster_criteria.model import Verdict
from muster_criteria.text import as_markdown
from tests.dags.conftest import NODE, Mailbox
from tests.dags.test_admission import answer, given, put
from tests.dags.test_qualification_runs import Decree, decree, node  # noqa: F401 - fixtures
from tests.dags.test_revalidation_runs import revalidate
from tests.muster import fleet as values
from tests.support import lives
from tests.support.refusals import caused
from tests.support.servers import sshd

DAG_ID = "held_verdict"


def over(*_: str) -> bool:
    """No run of Airflow is queued or running."""
    return False


@pytest.fixture
def tripped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A breaker that lets no node go: a fifth of one node is none."""
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")


@pytest.fixture
def failed_node(fleet: Path, tripped: None) -> str:
    """A node in production that a revalidation failed; gives what the node is marked with."""
    store.nodes.add(values.new_node("n1"))
    lives.in_production("n1")
    lease = values.begin("n1", "n1__idle")
    values.do_stage(lease, "intake", Verdict.FAIL, findings=(values.finding(confidence=0.8),))
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
    store.leases.release(lease.key, "over")
    return str(store.nodes.get("n1").held_run)


@pytest.mark.needs_sshd
def test_a_revalidation_past_the_limit_leaves_the_node_in_service_and_calls_a_person(
    node: sshd.Sshd,  # noqa: F811
    decree: Decree,  # noqa: F811
    mailbox: Mailbox,
    tripped: None,
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    lives.in_production(NODE)
    decree.verdicts["integrity"] = Verdict.FAIL
    states, run_id = revalidate(node=NODE, reason="idle")
    assert (states["conclude"], states["run"]) == ("failed", "failed"), "the verdict stands"
    stands = store.nodes.get(NODE)
    assert (stands.state, stands.held_run) == (State.PRODUCTION, RunKey("node_revalidation", run_id))
    assert store.leases.live() == []
    (mail,) = mailbox.mails
    assert "held" in mail["subject"]
    assert store.runs.get(RunKey("node_revalidation", run_id)).why_held.startswith(
        "the circuit breaker is open: 0 of 1 nodes"
    )
    assert revalidate("housekeeping")[0]["run"] == "success"
    with create_session() as session:
        started = list(session.scalars(select(DagRun).where(DagRun.dag_id == DAG_ID)))
    assert [run.conf for run in started] == [{"node": NODE, "level": "demo"}]


def test_while_it_is_open_no_node_is_taken_out_for_a_test(
    failed_node: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MUSTER_REVALIDATION_AFTER_HOURS", "0")
    with caplog.at_level("INFO"):
        assert revalidation.pick("r", {"level": "short"}) == []
    assert "n1" in caplog.text
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "20")
    assert [run["conf"]["node"] for run in revalidation.pick("r", {"level": "short"})] == ["n1"]


def test_the_question_says_what_was_found_and_why_it_is_held(failed_node: str) -> None:
    started = held.look("n1")
    assert started["subject"] == "Withdraw n1 from production?"
    assert "n1__idle" in started["body"]
    assert "80 %" in started["body"]
    assert store.runs.get(RunKey("node_qualification", "n1__idle")).why_held in started["body"]


@pytest.mark.parametrize(
    ("option", "state", "marked"),
    [
        (held.WITHDRAW, State.QUARANTINE, False),
        (held.RETEST, State.PRODUCTION, True),
        (held.KEEP, State.PRODUCTION, False),
    ],
)
def test_each_answer_is_carried_out_under_a_name(failed_node: str, option: str, state: State, marked: bool) -> None:
    assert given(answer(option), held, DAG_ID) == option
    stands = store.nodes.get("n1")
    assert (stands.state, bool(stands.held_run)) == (state, marked)
    (approval,) = store.verdicts.approvals("n1")
    assert (approval.person, approval.option, approval.reason) == ("Petra", option, "seen it myself")
    assert store.leases.live() == []


@pytest.mark.parametrize("marked", [False, True])
def test_a_person_is_notified_of_an_answer_that_was_not_carried_out(
    failed_node: str, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    """Its question is closed, and the run itself starts another one; where a person marked the task that asks,
    there is no answer, and housekeeping does.
    """
    put("n1", DAG_ID, "r")
    if not marked:
        admission.record_answer(RunKey(DAG_ID, "r"), answer(held.KEEP))
    monkeypatch.setenv("MUSTER_MAIL_TO", "oncall@example.org")
    with DAG(DAG_ID, schedule=None) as dag:
        admission.decision(held.look, held.carry_out, whether="x", options=held.OPTIONS, retest="node_revalidation")
    run = SimpleNamespace(dag_id=DAG_ID, run_id="r")
    context = {"params": {"node": "n1"}, "dag_run": run, "exception": NodeLeased("n1 is leased")}
    callbacks = dag.get_task("carry_out").on_failure_callback
    for each in callbacks if isinstance(callbacks, list) else [callbacks]:
        each(context)
    (waiting,) = [each for each in store.outbox.pending() if each.key.startswith(f"notice/answer lost/{DAG_ID}/r/")]
    said = " ".join(store.outbox.message(waiting.id).decode().split())
    assert f"start the DAG {DAG_ID}" not in said
    assert marked == (admission.asked_again(RunKey(DAG_ID, "r"), {}) == [])


@pytest.mark.parametrize(
    ("response", "ended", "asked"),
    [
        (answer(held.KEEP, name="airflow"), "failed", ["n1"]),
        (answer(held.KEEP), "success", []),
        (None, "failed", []),
    ],
    ids=["lost", "carried out", "no answer"],
)
def test_a_question_whose_answer_was_lost_is_asked_again_by_another_run(
    airflow_db: None, failed_node: str, monkeypatch: pytest.MonkeyPatch, response: Any, ended: str, asked: list[str]
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    def execute(_: Any, context: Any) -> None:
        if response is None:
            raise AirflowFailException("no answer in time")
        put("n1", DAG_ID, context["dag_run"].run_id)
        admission.record_answer(RunKey(DAG_ID, context["dag_run"].run_id), response)

    monkeypatch.setattr(admission.AskOperator, "execute", execute)
    queued = select(DagRun).where(DagRun.dag_id == DAG_ID, DagRun.state == "queued")
    with create_session() as session:
        before = [run.id for run in session.scalars(queued)]
    states, run_id = revalidate(DAG_ID, node="n1")
    assert states["run"] == ended
    with create_session() as session:
        query = queued.where(DagRun.run_id != run_id, DagRun.id.not_in(before))
        again = list(session.scalars(query))
        assert [run.conf["node"] for run in again] == asked
        for run in again:
            assert run.conf["level"] == "demo"
            session.delete(run)
    assert bool(store.nodes.get("n1").held_run) is (ended == "failed")


class TestReTestThatDidNotSettleIt:
    """The answer has closed its question, and the verdict is held as before: it is asked again."""

    @pytest.fixture(autouse=True)
    def _answered(self, failed_node: str) -> None:
        (asked,) = held.questions(over, over)
        self.question: str = asked["trigger_run_id"]
        self.test = runid.asked_by("n1", self.question)
        given(answer(held.RETEST), held, DAG_ID, self.question)

    def refuse(self) -> None:
        with pytest.raises(AirflowSkipException):
            revalidation.claim(RunKey("node_revalidation", self.test), {"node": "n1", "level": "short"})

    @pytest.mark.parametrize("dag_id", [DAG_ID, "node_revalidation"])
    def test_not_while_it_may_still_begin(self, dag_id: str) -> None:
        live = (dag_id, self.question if dag_id == DAG_ID else self.test)
        assert held.questions(lambda *run: run == live, over) == []

    @pytest.mark.parametrize("cause", ["paused", "leased", "in use"])
    def test_after_a_refusal_the_question_gives_the_cause(self, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claims, "controller_ready", lambda: None)
        if cause == "paused":
            store.pauses.pause("n1", datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=9), "Ada", "rewired")
        elif cause == "leased":
            store.leases.acquire("n1", RunKey("node_qualification", "other"))
        else:
            monkeypatch.setattr(service, "in_use", lambda _: "job 7 of ada")
        self.refuse()
        if cause == "leased":  # what that run finds would outdate the question
            assert held.questions(over, over) == []
            store.leases.release(RunKey("node_qualification", "other"), "over")
        (again,) = held.questions(over, over)
        assert again["trigger_run_id"] != self.question
        assert again["trigger_run_id"] == held.questions(over, over)[0]["trigger_run_id"], "once"
        (refusal,) = store.signs.refusals(store.verdicts.approvals("n1")[-1].at).values()
        assert as_markdown(refusal) in held.look("n1")["body"]

    def test_after_a_test_that_could_not_reach_the_node(self) -> None:
        store.runs.begin(RunKey("node_revalidation", self.test), "n1", "short", "requested")
        store.leases.acquire("n1", RunKey("node_revalidation", self.test))
        store.runs.finish(RunKey("node_revalidation", self.test), Verdict.INCONCLUSIVE, "ssh got no answer")
        store.leases.release(RunKey("node_revalidation", self.test), "over")
        assert len(held.questions(over, over)) == 1
        assert "ssh got no answer" in held.look("n1")["body"]

    def test_and_again_after_the_next_one(self) -> None:
        (again,) = held.questions(over, over)
        given(answer(held.RETEST), held, DAG_ID, again["trigger_run_id"])
        (third,) = held.questions(over, over)
        assert third["trigger_run_id"] not in (self.question, again["trigger_run_id"])


@pytest.mark.parametrize("operators", [held, admission])
def test_a_re_test_that_cannot_begin_is_tried_again_and_not_recorded(
    failed_node: str, operators: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "allocation", lambda _: "job 7 of ada")
    monkeypatch.setattr(service, "in_use", lambda _: "job 7 of ada")
    dag_id = DAG_ID if operators is held else "admission"
    with caused(AirflowException, MusterError):
        given(answer(held.RETEST), operators, dag_id)
    assert store.verdicts.approvals("n1") == []


@pytest.mark.parametrize("approval", [answer(reason=" "), answer(name="airflow")])
def test_without_a_named_person_or_a_reason_decides_nothing(failed_node: str, approval: dict[str, Any]) -> None:
    for option in held.OPTIONS:
        with pytest.raises(AirflowFailException):
            given({**approval, "chosen_options": [option]}, held, DAG_ID, option)
    assert str(store.nodes.get("n1").held_run) == failed_node
    assert store.leases.live() == []


def test_a_question_that_a_later_test_outdated_is_asked_again_once_that_is_over(failed_node: str) -> None:
    (first,) = held.questions(over, over)
    put("n1", DAG_ID, first["trigger_run_id"])
    later = values.begin("n1", "n1__later", level="demo", required_stages=("intake", "performance"))
    for stage in ("intake", "performance"):
        values.do_stage(later, stage, level="demo")
    assert held.questions(over, over) == []
    store.runs.finish(later.key, Verdict.PASS, "All is well.")
    store.leases.release(later.key, "over")
    assert str(store.nodes.get("n1").held_run) == failed_node
    (second,) = held.questions(over, over)
    assert second["trigger_run_id"] != first["trigger_run_id"]
    assert [second] == held.questions(over, over)


def test_a_question_whose_run_was_marked_is_asked_again_by_another_run(failed_node: str) -> None:
    """By a person, in Airflow, as a success or as failed; or its task is: it has no answer, and its run is over."""
    runs: list[str] = []
    for _ in range(held.ASKED_MAX):
        (asked,) = held.questions(over, lambda _, run_id: run_id in runs)
        assert asked["trigger_run_id"] not in runs
        runs.append(asked["trigger_run_id"])
        put("n1", DAG_ID, asked["trigger_run_id"])
        for live in (runs[-1:], []):
            assert held.questions(lambda _, run_id, live=live: run_id in live, lambda _, run_id: run_id in runs) == [
                asked
            ]
        ended = upkeep.end_questions(lambda *_: 0, lambda _, run_ids: len(run_ids))
        assert ended == [RunKey(DAG_ID, asked["trigger_run_id"])]
    (last,) = held.questions(over, lambda _, run_id: run_id in runs)
    assert last["trigger_run_id"] == runs[-1], "which Airflow has already: no other is started"
    (open_,) = store.attention.collect()
    assert (open_.node, open_.cause, open_.turn) == ("n1", Cause.HELD, Turn.PERSON)


def test_a_question_whose_time_is_over_is_not_asked_again(failed_node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run fails with that, and the node's history has it."""
    (asked,) = held.questions(over, over)
    put("n1", DAG_ID, asked["trigger_run_id"])
    monkeypatch.setenv("MUSTER_APPROVAL_HOURS", "0.0000001")
    assert upkeep.end_questions(lambda *_: 0, lambda _, run_ids: len(run_ids)) == []
    assert held.questions(over, lambda *_: True) == [asked]


def test_a_run_that_was_cleared_and_is_held_again_is_asked_about_again(failed_node: str) -> None:
    (first,) = held.questions(over, over)
    store.withdrawals.keep_in_service("n1", "Ada", "a bad driver")
    values.fail("n1", failed_node.split("/")[1])
    assert str(store.nodes.get("n1").held_run) == failed_node
    (second,) = held.questions(over, over)
    assert second["trigger_run_id"] != first["trigger_run_id"]
    assert [second] == held.questions(over, over)  # each housekeeping asks, and Airflow knows a question by its run


def test_what_is_held_outlives_the_retention_of_runs(failed_node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_RETENTION_RUNS_DAYS", "1")
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    store.nodes.add(values.new_node("gone"))
    values.qualify("gone")
    store.nodes.move("gone", State.RETIRED, "Ada", "sold")
    assert store.retention.apply(later)["runs"]
    assert held.look("n1")
    store.withdrawals.keep_in_service("n1", "Ada", "a bad driver")
    assert store.retention.apply(later)["runs"] == 0, "its FAIL stands"
    store.nodes.move("n1", State.RETIRED, "Ada", "not worth it")
    assert store.retention.apply(later)["runs"]


def test_what_was_settled_meanwhile_is_asked_no_more(failed_node: str) -> None:
    store.leases.acquire("n1", RunKey("node_revalidation", "again"))
    with caused(AirflowException, NodeLeased):
        given(answer(held.WITHDRAW), held, DAG_ID)
    store.leases.release(RunKey("node_revalidation", "again"), "over")
    assert [each["conf"] for each in held.questions(over, over)] == [{"node": "n1", "level": "short"}]
    store.withdrawals.keep_in_service("n1", "Ada", "a bad driver")
    assert held.questions(over, over) == []
    for attempt in (lambda: held.look("n1"), lambda: held.carry_out(RunKey(DAG_ID, "r"))):
        with pytest.raises(AirflowSkipException):
            attempt()
    assert store.nodes.get("n1").state is State.PRODUCTION


def test_an_answer_to_one_held_verdict_releases_no_later_one(failed_node: str) -> None:
    """ "3 % slow" was asked about, and by the time of the answer another run has found wrong bits."""
    put("n1", DAG_ID)
    admission.record_answer(RunKey(DAG_ID, "r"), answer(held.KEEP))
    lease = values.begin("n1", "n1__second")
    values.do_stage(lease, "intake", Verdict.FAIL, findings=(values.finding(metric="sdc", summary="Wrong bits."),))
    store.runs.finish(lease.key, Verdict.FAIL, "Wrong bits.")
    store.leases.release(lease.key, "over")
    marked = store.nodes.get("n1").held_run
    assert marked != failed_node
    with pytest.raises(AirflowFailException):
        held.carry_out(RunKey(DAG_ID, "r"))
    assert store.nodes.get("n1").held_run == marked
    assert store.verdicts.approvals("n1") == []
