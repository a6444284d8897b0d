"""Whole runs of the DAG, in this process, on a node behind a real sshd: what each end of a stage leads to.

The node side is a stand-in that measures nothing, so a stage that it completes is passed by decree; whatever went wrong
on the way goes to the real judge.
"""

from __future__ import annotations

import datetime
import socket
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.errors import MusterError, UnknownNode
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators import upkeep
from muster.operators.testing import claims, qualification, remote_job, stage
from muster.remote.connection import ssh
from muster.remote.job import jobs, outcome
from muster.remote.job.zipapp import AgentFile
from muster.reporting import sending
from muster_criteria.model import Action, Coverage, FaultClass, Finding, Judgement, Severity, Verdict
from muster_criteria.stage import judge as judging
from muster_criteria.stage.case import Case
from tests.dags.conftest import NODE, Mailbox, dag_of
from tests.support import standin
from tests.support.refusals import caused
from tests.support.servers import sshd

pytestmark = [pytest.mark.needs_sshd, pytest.mark.early(8)]

DAG_ID = "node_qualification"
STAGES = ["intake", "burn_in", "integrity", "performance", "thermal"]


class Decree:
    """The verdict on stages that the stand-in completed; PASS by default."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.findings: dict[str, tuple[Finding, ...]] = {}
        self.real = judging.judge

    def judge(self, case: Case) -> Judgement:
        if case.result is None or case.evidence or case.result.end != "completed":
            return self.real(case)
        stage, sku = case.stage, case.sku.name
        verdict = self.verdicts.get(stage, Verdict.PASS)
        found = self.findings.get(stage, ())
        sentence = f"{stage} by decree"
        return Judgement(stage, case.level, verdict, sentence, Coverage(1, 1, 1), found, (), False, sku, "1")


@pytest.fixture
def decree(monkeypatch: pytest.MonkeyPatch) -> Decree:
    made = Decree()
    monkeypatch.setattr(judging, "judge", made.judge)
    return made


@pytest.fixture
def node(
    airflow_db: None, server: sshd.Sshd, decree: Decree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> sshd.Sshd:
    path, sha256 = standin.write(tmp_path / "cache")
    monkeypatch.setattr(remote_job, "build_agent", lambda _: AgentFile(path, sha256))
    monkeypatch.setenv("MUSTER_RETRY_SECONDS", "0.1")
    return server


def qualify(**changes: Any) -> tuple[dict[str, str], str]:
    """Run the DAG: the tasks' states, and the run's id."""
    run = dag_of(DAG_ID).test(run_conf={"node": NODE, "level": "demo", "reason": "a test", **changes})
    states = {instance.task_id: str(instance.state) for instance in run.get_task_instances()}
    return {**states, "run": str(run.state)}, run.run_id


def listed(run_id: str) -> dict[str, str]:
    """What Airflow's list of the run's task instances shows beside each stage."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(TaskInstance).where(TaskInstance.run_id == run_id))
        return {each.task_id: each.rendered_map_index for each in found if each.rendered_map_index}


def verdicts(run_id: str) -> dict[str, str]:
    return {each.stage: str(each.verdict) for each in store.runs.stages(RunKey(DAG_ID, run_id))}


def test_a_good_node_is_qualified_reported_and_let_go(node: sshd.Sshd, mailbox: Mailbox) -> None:
    states, run_id = qualify()
    assert set(states.values()) == {"success"}
    run = store.runs.get(RunKey(DAG_ID, run_id))
    assert (run.verdict, run.state_after) == (Verdict.PASS, State.QUALIFIED)
    assert run.started_by == "airflow:dag_test", "the user of Airflow, here that of dag.test"
    assert store.leases.live() == []
    assert standin.started(node.home) == STAGES
    (mail,) = mailbox.mails
    assert mail["Subject"].startswith("[Muster] PASS this-node ")
    work = node.home / "muster"
    assert list((work / "jobs").iterdir()) == [], "every job was tidied up"
    assert len(list((work / "agents").iterdir())) == 1, "the agent was sent once"
    assert [event.to_state for event in store.nodes.events(NODE)][1:] == [
        State.INTAKE, State.BURN_IN, State.VALIDATION, State.QUALIFIED,
    ]  # fmt: skip


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.FAIL])
def test_a_run_that_is_not_concluded_is_reported_once_its_end_is_settled(
    node: sshd.Sshd, decree: Decree, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch, verdict: Verdict
) -> None:
    """Each try of the task ``conclude`` met the records away. A FAIL counts all the same, and nothing else does."""

    def lost(_: RunKey) -> None:
        raise AirflowFailException("the records are away")

    monkeypatch.setattr(qualification, "conclude", lost)
    decree.verdicts["performance"] = verdict
    _, run_id = qualify()
    run = store.runs.get(RunKey(DAG_ID, run_id))
    due = (Verdict.FAIL, State.QUARANTINE) if verdict is Verdict.FAIL else (Verdict.INCONCLUSIVE, State.REGISTERED)
    assert (run.verdict, store.nodes.get(NODE).state) == due
    (mail,) = mailbox.mails
    assert mail["Subject"].split(":")[0].split()[:3] == ["[Muster]", due[0], "this-node"]
    assert upkeep.report_ended(lambda *_: 0) == []


def test_a_blocking_fail_stops_the_burn_and_still_reports(node: sshd.Sshd, decree: Decree, mailbox: Mailbox) -> None:
    decree.verdicts["burn_in"] = Verdict.FAIL
    states, run_id = qualify()
    assert states["burn_in"] == "failed"
    assert listed(run_id) == {"intake": "PASS", "burn_in": "FAIL"}
    assert {states[name] for name in ("integrity", "performance", "thermal")} == {"skipped"}
    assert (states["conclude"], states["report"], states["release"]) == ("failed", "success", "success")
    assert states["run"] == "failed", "a node that failed must not leave a green run behind"
    assert standin.started(node.home) == ["intake", "burn_in"], "a FAIL is not tried again"
    assert store.nodes.get(NODE).state is State.QUARANTINE
    assert store.leases.live() == []
    assert "FAIL" in mailbox.mails[0]["Subject"]


@pytest.mark.slow
def test_a_fail_that_does_not_block_is_red_and_the_rest_is_measured(node: sshd.Sshd, decree: Decree) -> None:
    decree.verdicts["performance"] = Verdict.FAIL
    states, _ = qualify()
    assert (states["performance"], states["thermal"], states["conclude"]) == ("failed", "success", "failed")
    assert store.nodes.get(NODE).state is State.QUARANTINE


@pytest.mark.slow
def test_a_fail_that_a_person_has_waived_neither_stops_the_run_nor_passes(node: sshd.Sshd, decree: Decree) -> None:
    slow = Finding(
        "floor",
        "burn_rate",
        "cpu0",
        Severity.CRITICAL,
        FaultClass.CPU,
        Action.RETEST,
        "1",
        "≥ 2",
        "a test",
        "cpu0 is slow.",
    )
    decree.verdicts["burn_in"], decree.findings["burn_in"] = Verdict.FAIL, (slow,)
    assert qualify()[0]["burn_in"] == "failed"
    (found,) = store.verdicts.open_findings(NODE)
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    store.waivers.give(found.finding.id, until, "ann", "known slow")
    for to in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move(NODE, to, "ann", "known slow")
    states, run_id = qualify()
    assert (states["burn_in"], states["run"]) == ("success", "success")
    assert verdicts(run_id)["burn_in"] == "WARN"
    assert standin.started(node.home)[-5:] == STAGES


def test_inconclusive_is_measured_again_three_times_and_no_more(node: sshd.Sshd, decree: Decree) -> None:
    decree.verdicts["burn_in"] = Verdict.INCONCLUSIVE
    states, run_id = qualify()
    assert standin.started(node.home) == ["intake", "burn_in", "burn_in", "burn_in"]
    assert (states["burn_in"], states["integrity"], states["conclude"]) == ("failed", "skipped", "failed")
    assert store.runs.get(RunKey(DAG_ID, run_id)).verdict is Verdict.INCONCLUSIVE
    assert store.nodes.get(NODE).state is State.REGISTERED
    assert store.runs.get_job(RunKey(DAG_ID, run_id), "burn_in").attempt_key == f"{remote_job.RETRIES}.2"


def test_a_folder_that_cannot_be_removed_leaves_the_recorded_verdict(
    node: sshd.Sshd, decree: Decree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node fails on its last attempt and goes away before the job's folder is removed."""
    decree.verdicts["burn_in"] = Verdict.INCONCLUSIVE
    removed = 0

    def remove(*_: object) -> None:
        nonlocal removed
        removed += 1
        if removed == 3:  # intake, and two attempts at burn_in
            decree.verdicts["burn_in"] = Verdict.FAIL
        if removed == 4:
            raise ssh.Unreachable("gone")

    monkeypatch.setattr(jobs, "remove", remove)
    states, run_id = qualify()
    assert removed == 4
    assert states["burn_in"] == "failed"
    assert verdicts(run_id)["burn_in"] == "FAIL"
    assert store.nodes.get(NODE).state is State.QUARANTINE


def test_a_reboot_under_load_is_a_finding_not_an_excuse(node: sshd.Sshd) -> None:
    standin.behave(node.home, burn_in={"seconds": 1, "reboot": True})
    states, run_id = qualify()
    assert states["burn_in"] == "failed"
    assert verdicts(run_id)["burn_in"] == "FAIL"
    assert "reboot" in store.runs.get(RunKey(DAG_ID, run_id)).headline
    assert store.nodes.get(NODE).state is State.QUARANTINE
    assert standin.started(node.home) == ["intake", "burn_in"]


@pytest.mark.slow
def test_a_vanished_process_says_nothing_about_the_node(node: sshd.Sshd) -> None:
    standin.behave(node.home, burn_in={"die": True})
    _, run_id = qualify()
    assert verdicts(run_id)["burn_in"] == "INCONCLUSIVE"
    assert standin.started(node.home).count("burn_in") == 3


def test_a_node_lost_twice_while_its_neighbour_answers_fails(
    node: sshd.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes away under load, comes back, is measured again, and goes away again."""
    from muster_criteria.sku_files import programme

    monkeypatch.setattr(stage, "GRACE_S", 0.0)
    monkeypatch.setattr(ssh, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(programme, "stage_deadline_s", lambda *_: 2.0)
    standin.behave(node.home, burn_in={"seconds": 600})
    wait, original_finish = stage.MusterStageOperator._defer, stage.MusterStageOperator._finish

    def defer(self: Any, work: Any, seen: Any) -> None:
        if self.stage == "burn_in":
            node.stop()
        wait(self, work, seen)

    def finish(self: Any, *args: Any) -> Any:
        if self.stage == "burn_in":
            node.start()
        return original_finish(self, *args)

    monkeypatch.setattr(stage.MusterStageOperator, "_defer", defer)
    monkeypatch.setattr(stage.MusterStageOperator, "_finish", finish)
    with sshd.running(tmp_path / "neighbour") as neighbour:
        other = neighbour.node("neighbour")
        store.nodes.add(
            NewNode("neighbour", other.host, " ".join(other.host_key.split()[:2]), "cpu-generic", port=other.port)
        )
        _, run_id = qualify()
    summary = next(each for each in store.runs.stages(RunKey(DAG_ID, run_id)) if each.stage == "burn_in")
    assert (summary.verdict, summary.attempts) == (Verdict.FAIL, 2)
    assert "neighbour" in summary.reason
    assert store.runs.get_job(RunKey(DAG_ID, run_id), "burn_in").state == outcome.LOST


def test_a_node_that_another_run_holds_is_refused_at_once(node: sshd.Sshd, mailbox: Mailbox) -> None:
    store.leases.acquire(NODE, RunKey(DAG_ID, "this-node__other"))
    states, _ = qualify()
    assert (states.pop("claim"), states.pop("run")) == ("failed", "failed")
    assert set(states.values()) == {"upstream_failed"}, "nothing is even started"
    assert [lease.run_id for lease in store.leases.live()] == ["this-node__other"], "the holder keeps it"
    assert store.nodes.get(NODE).state is State.REGISTERED
    assert standin.started(node.home) == []
    assert mailbox.mails == []


def test_another_run_of_an_id_that_airflow_has_forgotten_does_not_pass(
    node: sshd.Sshd, decree: Decree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``DAG.test`` deletes the run of that date before it makes another one."""
    from airflow.models.dagrun import DagRun

    monkeypatch.setattr(DagRun, "generate_run_id", lambda **_: f"{NODE}__forgotten")
    params = {"node": NODE, "level": "demo", "reason": "a test"}
    day = datetime.datetime(2026, 7, 1, tzinfo=datetime.UTC)
    assert str(dag_of(DAG_ID).test(run_conf=params, logical_date=day).state) == "success"
    stood = store.runs.get(RunKey(DAG_ID, f"{NODE}__forgotten"))
    again = dag_of(DAG_ID).test(run_conf=params, logical_date=day)
    states = {instance.task_id: str(instance.state) for instance in again.get_task_instances()}
    assert (states["claim"], states["intake"], str(again.state)) == ("failed", "upstream_failed", "failed")
    assert (store.runs.get(stood.key), store.leases.live()) == (stood, [])


@pytest.mark.parametrize(("name", "cause"), [("nobody", UnknownNode), (NODE, MusterError)])
def test_what_a_person_must_put_right_is_one_sentence(
    fleet: Path, server: sshd.Sshd, name: str, cause: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    monkeypatch.setattr(claims.service, "allocation", lambda node: "a user's job")
    with caused(AirflowFailException, cause):
        qualification.claim(RunKey(DAG_ID, "r"), {"level": "demo", "reason": "x", "node": name})
    assert store.leases.live() == []


def test_a_person_may_force_a_busy_node_and_it_is_recorded(
    fleet: Path, server: sshd.Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims.service, "allocation", lambda node: "a user's job")
    params = {"node": NODE, "level": "demo", "reason": "x", "force_reason": "agreed with the user"}
    assert qualification.claim(RunKey(DAG_ID, "r"), params, "provisioner")["node"] == NODE
    run = store.runs.get(RunKey(DAG_ID, "r"))
    assert (run.forced, run.started_by) == ("agreed with the user", "airflow:provisioner")
    assert "airflow:provisioner" in str(store.reporting.run(RunKey(DAG_ID, "r")).forced)


def test_mail_that_is_down_fails_nothing_and_is_sent_later(
    node: sshd.Sshd, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    good = os.environ["AIRFLOW_CONN_SMTP_DEFAULT"]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        bad = good.replace(str(_port(good)), str(closed.getsockname()[1]))
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", bad)
        states, _ = qualify()
    assert (states["report"], states["run"]) == ("success", "success")
    assert mailbox.mails == []
    assert len(store.outbox.pending()) == 1
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", good)
    (waiting,) = store.outbox.pending()
    assert sending.deliver_mail(waiting.key) == (1, 0, 0)
    assert sending.deliver_mail() == (0, 0, 0)
    assert len(mailbox.mails) == 1


def _port(connection: str) -> int:
    import json

    return int(json.loads(connection)["port"])


def test_the_sweep_frees_only_nodes_whose_run_is_over(fleet: Path, server: sshd.Sshd) -> None:
    store.leases.acquire(NODE, RunKey(DAG_ID, "r"))
    assert upkeep.sweep_leases(lambda dag_id, run_ids: len(run_ids)) == []
    assert upkeep.sweep_leases(lambda dag_id, run_ids: len(set(run_ids) - {"r"})) == [NODE]
    assert store.leases.live() == []
