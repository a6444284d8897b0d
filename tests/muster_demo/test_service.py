"""How the demo takes nodes into service: its blocks, its answers in a person's place, and what it tells of both."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import store
from muster.errors import AirflowRefused
from muster.judging.verdict import record
from muster.model.runs import Job, RunKey
from muster.model.stages import CLUSTER_STAGES
from muster.model.states import State
from muster.rules.lifecycle.decisions import is_person
from muster_criteria.model import Coverage, Judgement, Verdict
from muster_demo import service, watch
from muster_demo.scoring import Service
from muster_demo.service import ACTOR, Approver, ServiceStory, blocks, cells, service_of
from muster_demo.watch import Run
from tests.support import lives

NODE = "sim-h100-1"
QUESTION = "sim-h100-1__after-block-1"


@given(st.integers(0, 40))
def test_every_node_is_in_one_block_of_two_to_four_unless_it_is_alone(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    made = blocks(nodes)
    assert sorted(node for block in made for node in block) == (sorted(nodes) if count > 1 else [])
    assert all(2 <= len(block) <= 4 for block in made)


class Airflow:
    """Stands in for the API client: one question waits until it is answered. ``quicker``: a person answers first."""

    def __init__(self, *, quicker: bool = False, refuses: bool = False) -> None:
        self.waits = True
        self.quicker, self.refuses = quicker, refuses
        self.answers: list[tuple[Any, ...]] = []

    def hitl_pending(self) -> list[dict[str, Any]]:
        others = {"task_instance": {"dag_id": "somebody_elses", "dag_run_id": "r"}, "subject": "?"}
        mine = {"task_instance": {"dag_id": "admission", "dag_run_id": QUESTION}, "subject": f"Admit {NODE}?"}
        return [others, mine] if self.waits else [others]

    def hitl_answer(self, *answer: Any) -> None:
        if self.quicker or self.refuses:
            self.waits = not self.quicker
            raise AirflowRefused("it was answered already" if self.quicker else "this user may not")
        self.answers.append(answer)
        self.waits = False


def approver(airflow: Airflow, patience_s: float, messages: list[str]) -> Approver:
    return Approver(airflow, patience_s, messages.append)  # type: ignore[arg-type]


def test_unattended_the_demo_answers_at_once_and_says_whose_word_it_is() -> None:
    airflow, messages = Airflow(), []
    approver(airflow, 0.0, messages).look()
    (answer,) = airflow.answers
    assert answer[:4] == ("admission", QUESTION, "ask", ["Admit"])
    assert "the demo" in answer[4]["decision_reason"]
    assert is_person(ACTOR), "the records would refuse it as a person"
    assert messages == []


def test_a_user_is_asked_once_where_to_answer_and_has_time_to(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(service.time, "monotonic", lambda: now[0])
    airflow, messages = Airflow(), []
    asking = approver(airflow, 60.0, messages)
    for now[0] in (0.0, 30.0, 59.0):
        asking.look()
    assert airflow.answers == []
    (sentence,) = messages
    assert f"/dags/admission/runs/{QUESTION}/tasks/ask/required_actions" in sentence
    assert "60 s" in sentence
    now[0] = 61.0
    asking.look()
    assert len(airflow.answers) == 1


def test_a_user_who_was_quicker_has_the_last_word() -> None:
    airflow = Airflow(quicker=True)
    approver(airflow, 0.0, []).look()
    assert airflow.answers == []


def test_an_answer_that_is_refused_for_good_is_no_silent_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "patiently", lambda call: watch.patiently(call, 0.0))
    with pytest.raises(AirflowRefused, match="this user may not"):
        approver(Airflow(refuses=True), 0.0, []).look()


class Lives:
    """Stands in for Airflow and the records: blocks end with the verdicts given, in order, and PASS lets members in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *verdicts: Verdict) -> None:
        self.verdicts = list(verdicts)
        self.triggered: list[tuple[str, str, list[str]]] = []
        self.served: dict[str, Service] = {}
        self.requests: list[str] = []
        monkeypatch.setattr(service, "service_of", lambda node: self.served[node])
        monkeypatch.setattr(service.store.nodes, "find", lambda states: [types.SimpleNamespace(name="n1")])
        monkeypatch.setattr(service.between, "hold_back", lambda node: self.met.append(("held back", node)))
        self.watcher = types.SimpleNamespace(runs=[], client=self, going=lambda: self.watcher.runs)
        self.met: list[tuple[str, str]] = []

    def pause(self, dag_id: str) -> None:
        assert dag_id == "idle_revalidation"

    def unpause(self, dag_id: str) -> None:
        assert dag_id in service.DAGS

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any], note: str) -> None:
        self.triggered.append((dag_id, run_id, conf.get("nodes", [])))
        verdict = self.verdicts.pop(0) if dag_id == "cluster_qualification" else None
        for node in conf.get("nodes", ()):
            self.served[node] = Service(node, "", validations=(types.SimpleNamespace(verdict=verdict),))  # type: ignore[arg-type]

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        self.requests.append(dag_id)
        return [{"conf": {"node": "n1"}, "dag_run_id": f"n1__{dag_id}"}]

    def run_on(self, node: str) -> None:
        self.met.append(("ran", node))

    def take_back(self, node: str) -> None:
        self.met.append(("took back", node))

    def tell(self, users: Lives | None = None) -> None:
        approver = types.SimpleNamespace(look=lambda: None)

        def follow(meanwhile: Callable[[], None]) -> None:
            meanwhile()
            meanwhile()

        def fail(node: str) -> None:
            self.met.append(("failed", node))

        scenario = ServiceStory(self.watcher, approver, follow, level="demo", fail=fail, users=users)  # type: ignore[arg-type]
        scenario.run(["n1", "n2"])


def test_the_story_follows_every_run_that_its_steps_bring_about(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Lives(monkeypatch, Verdict.PASS)
    story.tell()
    assert story.triggered == [
        ("peer_statistics", "now__demo", []), ("cluster_qualification", "block-1__demo", ["n1", "n2"]),
        ("idle_revalidation", "now__demo", []), ("health_sweep", "found__demo", []),
        ("health_sweep", "proved__demo", []),
    ]  # fmt: skip
    assert story.met == [("held back", "n2"), ("failed", "n1")]
    assert [(run.node, run.dag_id) for run in story.watcher.runs] == [
        ("n1", "peer_statistics"), ("n2", "peer_statistics"), ("n1", "cluster_qualification"),
        ("n2", "cluster_qualification"), ("n1", "admission"), ("n1", "node_revalidation"), ("n1", "idle_revalidation"),
        ("n1", "idle_revalidation"),  # one by its schedule, which is over before the node fails
        ("n1", "health_sweep"), ("n1", "repair"), ("n1", "node_qualification"), ("n1", "health_sweep"),
    ]  # fmt: skip


def test_users_jobs_run_on_what_serves_and_interrupt_one_test_once(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Lives(monkeypatch, Verdict.PASS)
    monkeypatch.setattr(service, "computes", lambda run: run.dag_id == "node_revalidation")
    story.tell(users=story)
    assert story.met == [("held back", "n2"), ("ran", "n1"), ("failed", "n1"), ("ran", "n1"), ("took back", "n1")]
    assert [dag_id for dag_id, _, _ in story.triggered].count("idle_revalidation") == 2


@pytest.mark.parametrize("messages", [Verdict.INCONCLUSIVE, Verdict.SKIPPED])
def test_a_block_without_a_result_is_tried_once_more_and_no_more(
    monkeypatch: pytest.MonkeyPatch, messages: Verdict
) -> None:
    story = Lives(monkeypatch, messages, messages)
    story.tell()
    blocks_tried = [run_id for dag_id, run_id, _ in story.triggered if dag_id == "cluster_qualification"]
    assert blocks_tried == ["block-1__demo", "block-1__demo-again"]


@pytest.fixture
def fleet(enrol: Callable[..., None]) -> None:
    """A simulated node that is qualified."""
    enrol(NODE)
    lives.qualified(NODE)


def validate(verdict: Verdict) -> Run:
    """The node goes through a block, which holds it still."""
    (stage,) = CLUSTER_STAGES
    run = RunKey("cluster_qualification", "block-1__demo")
    store.leases.acquire(NODE, run)
    store.runs.begin(run, NODE, "demo", "demo", required_stages=CLUSTER_STAGES)
    store.runs.begin_stage(run, stage)
    messages = Judgement(stage, "demo", verdict, "by decree", Coverage(1, 1, 1), (), (), True, "h100-sxm-8", "1")
    record(run, messages, store.stages.Sent())
    store.runs.finish(run, verdict, "by decree")
    return Run(NODE, True, run.dag_id, run.run_id)


def test_a_node_that_the_gate_admits_is_announced_as_such(fleet: None) -> None:
    from muster.admission import entry

    run = validate(Verdict.PASS)
    assert cells(run, True) == {"tests": "PASS", "cluster": "PASS"}
    entry.admit(NODE, run.key)
    assert cells(run, True) == {"tests": "PASS", "cluster": "PASS", "production": "admitted"}
    served = service_of(NODE)
    assert (served.state, served.entered_by, served.on_full_pass) == ("production", "muster", True)
    assert [report.state_after for report in served.reports] == ["production"]


def test_a_node_that_the_demo_admits_is_announced_as_the_demos_own_doing(fleet: None) -> None:
    from muster.admission import entry

    run = validate(Verdict.WARN)
    store.leases.release(run.key, "over")
    requests = Run(NODE, True, "admission", QUESTION)
    assert cells(requests, False)["production"] == "asked"
    assert cells(requests, True)["production"] == "kept out"
    assert service_of(NODE).entered_by == ""
    entry.admit_by(NODE, ACTOR, service.ANSWER_REASON, option="Admit", link="http://airflow/hitl")
    assert cells(requests, True)["production"] == "approved"
    served = service_of(NODE)
    assert (served.entered_by, served.on_full_pass) == (ACTOR, False)
    assert [messages.person for messages in served.approvals] == [ACTOR]


def test_coming_back_from_a_revalidation_is_not_entering_anew(fleet: None) -> None:
    store.nodes.move(NODE, State.PRODUCTION, lives.PERSON, "it may")
    run = RunKey("node_revalidation", "again")
    store.leases.acquire(NODE, run)
    store.runs.begin(run, NODE, "demo", "idle", required_stages=["intake"])
    store.runs.begin_stage(run, "intake")
    assert cells(Run(NODE, True, run.dag_id, run.run_id), False)["revalidation"] == "running"
    assert not any(service.computes(Run(NODE, True, run.dag_id, run_id)) for run_id in (run.run_id, "not claimed yet"))
    store.runs.record_job(Job(run.dag_id, run.run_id, "burn_in", "1", "running", "/jobs/1"))
    assert cells(Run(NODE, True, run.dag_id, run.run_id), False)["revalidation"] == "burn-in"
    assert service.computes(Run(NODE, True, run.dag_id, run.run_id))
    messages = Judgement("intake", "demo", Verdict.PASS, "", Coverage(1, 1, 1), (), (), True, "h100-sxm-8", "1")
    record(run, messages, store.stages.Sent())
    store.runs.finish(run, Verdict.PASS, "well")
    served = service_of(NODE)
    assert served.revalidated
    assert served.entered_by == lives.PERSON
