"""Idle production nodes tested again, on a node behind a real sshd with a stand-in for the node side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import store
from muster.integration import closing
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators import forms
from muster.operators.lifecycle import revalidation
from muster_criteria.model import Judgement, Verdict
from muster_criteria.stage import judge as judging
from muster_criteria.stage.case import Case
from tests.dags.conftest import NODE, Mailbox, dag_of
from tests.dags.test_qualification_runs import Decree, decree, node  # noqa: F401 - fixtures
from tests.muster import fleet as records_fleet
from tests.support import lives, standin
from tests.support.servers import sshd

pytestmark = pytest.mark.needs_sshd

DAG_ID = "node_revalidation"


def revalidate(dag_id: str = DAG_ID, **conf: Any) -> tuple[dict[str, str], str]:
    run = dag_of(dag_id).test(run_conf={"level": "demo", **conf})
    states = {instance.task_id: str(instance.state) for instance in run.get_task_instances()}
    return {**states, "run": str(run.state)}, run.run_id


def label_busy(server: sshd.Sshd) -> None:
    record = store.nodes.get(NODE)
    store.nodes.add(
        NewNode(
            NODE, record.host, record.host_key, record.sku, port=record.port, user=record.user, launch=record.launch,
            work_dir=record.work_dir, labels={"busy": "yes"},
        )
    )  # fmt: skip


def test_a_good_node_goes_out_and_comes_back(node: sshd.Sshd, mailbox: Mailbox) -> None:  # noqa: F811
    lives.in_production(NODE)
    states, run_id = revalidate(node=NODE, reason="idle")
    assert set(states.values()) == {"success"}
    assert store.runs.get(RunKey(DAG_ID, run_id)).verdict is Verdict.PASS
    moves = [(event.from_state, event.to_state) for event in store.nodes.events(NODE)]
    assert moves[-2:] == [(State.PRODUCTION, State.REVALIDATION), (State.REVALIDATION, State.PRODUCTION)]
    assert store.leases.live() == []
    assert len(mailbox.mails) == 1


def test_a_test_of_some_stages_only_returns_the_node_by_these(node: sshd.Sshd) -> None:  # noqa: F811
    lives.in_production(NODE)
    states, run_id = revalidate(node=NODE, reason="idle", stages=["performance", "intake"])
    assert states["run"] == "success"
    assert [each.stage for each in store.runs.stages(RunKey(DAG_ID, run_id))] == ["intake", "performance"]
    assert store.runs.get(RunKey(DAG_ID, run_id)).verdict is Verdict.PASS
    assert store.nodes.get(NODE).state is State.PRODUCTION


def test_a_bad_node_does_not_come_back(node: sshd.Sshd, decree: Decree) -> None:  # noqa: F811
    lives.in_production(NODE)
    decree.verdicts["integrity"] = Verdict.FAIL
    states, _ = revalidate(node=NODE, reason="idle")
    assert (states["conclude"], states["run"]) == ("failed", "failed")
    assert store.nodes.get(NODE).state is State.QUARANTINE
    assert store.leases.live() == []


def test_a_key_that_the_controller_loses_costs_the_node_nothing(
    node: sshd.Sshd,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives.in_production(NODE)
    judge = judging.judge

    def judge_and_lose_the_key(case: Case) -> Judgement:
        node.key_file.unlink(missing_ok=True)
        return judge(case)

    monkeypatch.setattr(judging, "judge", judge_and_lose_the_key)
    states, run_id = revalidate(node=NODE, reason="idle")
    assert states["run"] == "failed", "a node that was not tested must not leave a green run behind"
    now, run = store.nodes.get(NODE), store.runs.get(RunKey(DAG_ID, run_id))
    assert (now.state, now.inconclusive, run.verdict) == (State.PRODUCTION, 0, Verdict.SKIPPED)
    assert str(node.key_file) in run.headline
    assert store.leases.live() == []


@pytest.mark.slow
@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.PASS])
def test_a_node_in_shadow_mode_is_judged_and_never_drained(
    node: sshd.Sshd,  # noqa: F811
    decree: Decree,  # noqa: F811
    mailbox: Mailbox,
    verdict: Verdict,
) -> None:
    store.adoption.adopt([NODE], lives.PERSON, "it serves already")
    decree.verdicts["integrity"] = verdict
    _, run_id = revalidate(node=NODE, reason="idle")
    assert store.runs.get(RunKey(DAG_ID, run_id)).verdict is verdict
    assert {event.to_state for event in store.nodes.events(NODE)} <= {State.REGISTERED, State.PRODUCTION}
    assert len(mailbox.mails) == 1


def test_a_node_that_somebody_uses_by_now_is_left_alone(node: sshd.Sshd) -> None:  # noqa: F811
    lives.in_production(NODE)
    label_busy(node)
    states, _ = revalidate(node=NODE, reason="idle")
    assert (states.pop("claim"), states.pop("run")) == ("skipped", "success")
    assert set(states.values()) == {"skipped"}
    assert standin.started(node.home) == []
    assert store.leases.live() == []
    assert store.nodes.get(NODE).state is State.PRODUCTION


def test_of_two_runs_that_want_one_node_one_runs(fleet: Path, server: sshd.Sshd) -> None:
    lives.in_production(NODE)
    params = {"node": NODE, "level": "demo", "reason": "x"}
    revalidation.claim(RunKey(DAG_ID, "first"), params)
    revalidation.claim(RunKey(DAG_ID, "first"), params)  # a retried task
    with pytest.raises(AirflowSkipException):
        revalidation.claim(RunKey(DAG_ID, "second"), params)
    assert [lease.run_id for lease in store.leases.live()] == ["first"]


def test_idle_nodes_are_picked_and_one_run_is_started_for_each(
    node: sshd.Sshd,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    lives.in_production(NODE)
    states, _ = revalidate("idle_revalidation")
    assert (states["pick"], states["revalidate"]) == ("success", "skipped"), "it has passed a moment ago"
    monkeypatch.setenv("MUSTER_REVALIDATION_AFTER_HOURS", "0")
    states, _ = revalidate("idle_revalidation")
    assert set(states.values()) == {"success"}
    with create_session() as session:
        runs = list(session.scalars(select(DagRun).where(DagRun.dag_id == DAG_ID, DagRun.state == "queued")))
    assert [(run.run_id.split("__")[0], run.conf["node"], run.conf["level"]) for run in runs] == [(NODE, NODE, "demo")]


def test_while_the_dag_of_the_tests_is_paused_none_is_started_and_that_is_shown(
    node: sshd.Sshd,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the runs would wait, and begin all at once when it is resumed."""
    from airflow.models import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select, update

    lives.in_production(NODE)
    revalidate("idle_revalidation")  # it has passed a moment ago, and Airflow knows the DAGs from now on
    monkeypatch.setenv("MUSTER_REVALIDATION_AFTER_HOURS", "0")
    monkeypatch.setitem(forms.TASK_DEFAULTS, "retries", 0)
    of_tests = select(DagRun.run_id).where(DagRun.dag_id == DAG_ID)
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == DAG_ID).values(is_paused=True))
        before = set(session.scalars(of_tests))
    states, _ = revalidate("idle_revalidation")
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == DAG_ID).values(is_paused=False))
        begun = set(session.scalars(of_tests)) - before
    assert (states["revalidate"], states["run"], begun) == ("failed", "failed", set())


def test_an_empty_fleet_is_no_trouble(airflow_db: None, fleet: Path) -> None:
    states, _ = revalidate("idle_revalidation")
    assert states == {"pick": "success", "revalidate": "skipped", "run": "success"}


def test_a_revalidation_that_could_not_decide_costs_no_service_and_is_repeated_until_a_person_is_asked(
    fleet: Path, server: sshd.Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    lives.in_production(NODE)
    before = store.certificates.newest(NODE)
    params = {"node": NODE, "level": "demo", "reason": "x"}
    for turn in ("first", "second", "third"):
        assert store.outbox.waiting() == 0
        revalidation.claim(RunKey(DAG_ID, turn), params)
        store.runs.begin_stage(RunKey(DAG_ID, turn), "intake")
        assert revalidation.pick("hourly", {"level": "demo"}) == [], "a run holds it"
        if turn == "second":  # its task conclude was never run
            closing.release(RunKey(DAG_ID, turn), "over")
        else:
            with pytest.raises(AirflowFailException):
                revalidation.conclude(RunKey(DAG_ID, turn))
            closing.release(RunKey(DAG_ID, turn), "over")
        assert store.nodes.get(NODE).state is State.PRODUCTION
        picked = [run["conf"]["node"] for run in revalidation.pick("hourly", {"level": "demo"})]
        assert picked == ([] if turn == "third" else [NODE]), "fresh, but for the test that decided nothing"
    assert store.nodes.get(NODE).inconclusive == 3
    assert store.outbox.waiting() == 1
    assert store.certificates.newest(NODE) == before
    assert [each.node for each in store.attention.collect()] == [NODE]


@pytest.mark.parametrize(
    ("verdict", "then"), [(Verdict.WARN, State.REVALIDATION), (Verdict.PROVISIONAL, State.PRODUCTION)]
)
def test_an_inconclusive_revalidation_that_found_something_keeps_the_node_out(
    fleet: Path, server: sshd.Sshd, verdict: Verdict, then: State
) -> None:
    """What no peer could judge yet is nothing found, as in a run that ends PROVISIONAL."""
    _tested(verdict, "first")
    assert store.nodes.get(NODE).state is then


def _tested(verdict: Verdict, turn: str) -> None:
    lives.in_production(NODE)
    revalidation.claim(RunKey(DAG_ID, turn), {"node": NODE, "level": "demo", "reason": "x"})
    store.runs.begin_stage(RunKey(DAG_ID, turn), "intake")
    result, raw = records_fleet.result("intake")
    records_fleet.record(RunKey(DAG_ID, turn), result, records_fleet.judgement("intake", verdict), raw)
    store.runs.finish(RunKey(DAG_ID, turn), Verdict.INCONCLUSIVE, "its switch was away")
    store.leases.release(RunKey(DAG_ID, turn), "over")


def test_a_node_that_waits_and_is_still_used_is_left_alone(fleet: Path, server: sshd.Sshd) -> None:
    _tested(Verdict.WARN, "first")
    params = {"node": NODE, "level": "demo", "reason": "x"}
    label_busy(server)
    with pytest.raises(AirflowSkipException):
        revalidation.claim(RunKey(DAG_ID, "second"), params)
    assert store.leases.live() == []
