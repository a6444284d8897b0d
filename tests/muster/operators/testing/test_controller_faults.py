"""A fault of the controller costs no node its service or its budget; what the node's own verdicts decide stays."""

from __future__ import annotations

import contextlib
import email
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.errors import ControllerFault, DatabaseNotReady
from muster.model.runs import Job, RunKey
from muster.model.states import State
from muster.operators.lifecycle import revalidation
from muster.operators.testing import block, faults, qualification, remote_job
from muster.operators.testing.stage import MusterStageOperator
from muster.remote.connection import ssh
from muster.remote.job import jobs, outcome
from muster.remote.job.attempt import Finished
from muster.remote.job.outcome import Ended, Kind
from muster.settings import settings
from muster_criteria.measured import StageResult
from muster_criteria.model import Evidence, Verdict
from muster_criteria.stages import STAGES
from tests.muster import copied, fleet
from tests.support.servers import sshd

pytestmark = pytest.mark.usefixtures("sqlite_db")

NODE = "gpu-0001"
RUN = RunKey("node_revalidation", "hourly")
PARAMS = {"node": NODE, "level": "demo", "reason": "x"}
BLOCK = {"nodes": [NODE, "gpu-0002"], "level": "demo", "reason": "x"}
FAULT = "the SSH key file /keys/id does not exist"


@pytest.mark.parametrize("broken", ["no connection", "key", "no key", "disk"])
@pytest.mark.parametrize(
    "begin",
    [
        lambda: revalidation.pick("hourly", {"level": "demo"}),
        lambda: revalidation.claim(RUN, PARAMS),
        lambda: qualification.claim(RUN, PARAMS),
        lambda: block.claim(RUN, BLOCK),
    ],
    ids=["pick", "revalidation", "qualification", "block"],
)
def test_no_run_takes_a_node_that_the_controller_cannot_test(
    begin: Callable[[], Any], broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.in_service()
    if broken == "no connection":
        monkeypatch.delenv(sshd.CONNECTION)
    elif broken == "key":
        monkeypatch.setenv(sshd.CONNECTION, sshd.connection("/nowhere/key"))
    elif broken == "no key":
        monkeypatch.setenv(sshd.CONNECTION, json.dumps({"conn_type": "ssh", "login": "muster"}))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    else:
        (settings().home / "agents").write_text("no folder")
    with pytest.raises(ControllerFault):
        begin()
    assert store.nodes.get(NODE).state is State.PRODUCTION
    assert store.leases.live() == []


def test_a_fault_that_refuses_claims_is_mailed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copied.in_service()
    monkeypatch.setenv(sshd.CONNECTION, sshd.connection("/nowhere/key"))
    for recipients in ("", "ops@example.org", "ops@example.org", "no address"):
        monkeypatch.setenv("MUSTER_MAIL_TO", recipients)
        for _ in range(2):
            with pytest.raises(ControllerFault):
                qualification.claim(RUN, PARAMS)
    (waiting,) = store.outbox.pending()
    message = email.message_from_bytes(store.outbox.message(waiting.id))
    assert message["To"] == "ops@example.org"
    assert "/nowhere/key" in str(message.get_payload())


@pytest.mark.parametrize(
    ("intake", "broken", "state", "inconclusive", "verdict"),
    [
        (None, True, State.PRODUCTION, 0, Verdict.SKIPPED),
        (Verdict.PASS, True, State.PRODUCTION, 0, Verdict.SKIPPED),
        (Verdict.WARN, True, State.REVALIDATION, 0, Verdict.SKIPPED),
        (Verdict.FAIL, True, State.QUARANTINE, 0, Verdict.FAIL),
        (Verdict.INCONCLUSIVE, True, State.PRODUCTION, 1, Verdict.INCONCLUSIVE),
        (Verdict.PASS, False, State.PRODUCTION, 1, Verdict.INCONCLUSIVE),
    ],
)
def test_a_run_that_the_controller_broke_off_costs_its_node_nothing(
    intake: Verdict | None, broken: bool, state: State, inconclusive: int, verdict: Verdict
) -> None:
    """But a FAIL counts, a warning is not forgotten, and a task that ended for another reason is no fault of ours."""
    copied.in_service()
    revalidation.claim(RUN, PARAMS)
    store.runs.begin_stage(RUN, "intake")
    if intake is not None:
        result, raw = fleet.result("intake")
        fleet.record(RUN, result, fleet.judgement("intake", intake), raw)
    if broken:
        faults.note(RUN, "burn_in", FAULT)
    with pytest.raises(AirflowFailException):
        revalidation.conclude(RUN)
    node, run = store.nodes.get(NODE), store.runs.get(RUN)
    assert (node.state, node.inconclusive, run.verdict) == (state, inconclusive, verdict)


@pytest.mark.parametrize("damaged", [RUN, RunKey("node_revalidation", "another")])
def test_a_fault_on_disk_that_cannot_be_read_stops_no_other_run(
    damaged: RunKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.in_service()
    revalidation.claim(RUN, PARAMS)
    with monkeypatch.context() as away:
        away.setattr(store.attempts, "note_fault", broken_off)
        faults.note(RUN, "burn_in", FAULT)
        kept = {*(settings().archive_folder / faults.FOLDER).iterdir()}
        if damaged != RUN:
            faults.note(damaged, "burn_in", FAULT)
            kept = {*(settings().archive_folder / faults.FOLDER).iterdir()} - kept
    for path in kept:
        path.write_bytes(b"")  # as after a power failure
    assert list(faults.of_run(RUN)) == [NODE]


def broken_off(*_: Any, **__: Any) -> None:
    raise DatabaseNotReady("the disk is full")


def test_a_fault_that_the_records_could_not_take_waits_on_the_disk_that_workers_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copied.in_service()
    revalidation.claim(RUN, PARAMS)
    monkeypatch.setenv("MUSTER_ARCHIVE", str(tmp_path / "shared"))
    with monkeypatch.context() as away:
        away.setenv("MUSTER_HOME", str(tmp_path / "another worker"))
        away.setenv("MUSTER_DATABASE_URL", f"sqlite:///{settings().home}/empty.db")
        faults.note(RUN, "intake", FAULT)
        faults.note(RunKey("node_revalidation", "another"), "intake", FAULT)
    for _ in range(2):
        assert faults.of_run(RUN) == {NODE: FAULT}
    store.attempts.forget_fault(RUN, "intake")
    assert faults.of_run(RUN) == {}, "another attempt began since"


def test_a_cleared_run_returns_its_node_no_further_than_it_found_it() -> None:
    """Out of production since its first end, for a warning of the node's own."""
    copied.in_service()
    revalidation.claim(RUN, PARAMS)
    store.runs.begin_stage(RUN, "intake")
    result, raw = fleet.result("intake")
    fleet.record(RUN, result, fleet.judgement("intake", Verdict.WARN), raw)
    for broken in (False, True):
        store.runs.begin_stage(RUN, "burn_in")
        if broken:
            faults.note(RUN, "burn_in", FAULT)
        with pytest.raises(AirflowFailException):
            revalidation.conclude(RUN)
        assert store.nodes.get(NODE).state is State.REVALIDATION


def test_a_stage_that_passed_before_its_run_was_cleared_is_not_tested_again_by_that() -> None:
    copied.in_service()
    for stages, fault, verdict in ((STAGES, "", Verdict.PASS), (STAGES[1:], FAULT, Verdict.SKIPPED)):
        revalidation.claim(RUN, PARAMS)
        for stage in STAGES:
            store.runs.begin_stage(RUN, stage)
            if stage in stages:
                result, raw = fleet.result(stage)
                fleet.record(RUN, result, fleet.judgement(stage, Verdict.PASS), raw)
        if fault:
            faults.note(RUN, STAGES[0], fault)
        with contextlib.suppress(AirflowFailException):
            revalidation.conclude(RUN)
        assert store.runs.get(RUN).verdict is verdict


def test_of_a_block_only_the_member_that_did_not_respond_is_charged() -> None:
    for name in BLOCK["nodes"]:
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
    block.claim(RunKey("cluster_qualification", "block"), BLOCK)
    faults.note(RunKey("cluster_qualification", "block"), block.STAGE, FAULT, node=NODE)
    for _ in range(2):  # its worker is killed before the task ends, and Airflow tries it again
        block.judge(RunKey("cluster_qualification", "block"))
    charged = {name: store.nodes.get(name).inconclusive for name in BLOCK["nodes"]}
    assert charged == {NODE: 0, "gpu-0002": 1}


def returned(result: StageResult, raw: bytes, monkeypatch: pytest.MonkeyPatch, work: str = "") -> None:
    """The task of the stage intake finds this result, of a job that was planned as ``work``."""
    store.runs.record_job(Job(RUN.dag_id, RUN.run_id, "intake", "8.0", outcome.RUNNING, "", fence=1, work=work))
    left = Finished(Ended(Kind.DONE, "it ended"), jobs.Collected(raw, None))
    monkeypatch.setattr(remote_job.remote, "collected", lambda *_, **__: contextlib.nullcontext(left))
    monkeypatch.setattr(remote_job.remote, "checked_result", lambda *_: (result, ""))
    named = {"dag_id": RUN.dag_id, "run_id": RUN.run_id}
    instance = types.SimpleNamespace(**named, task_id="intake", try_number=1, max_tries=8)
    context: Any = {"ti": instance, "dag_run": types.SimpleNamespace(**named)}
    MusterStageOperator(task_id="intake", stage="intake").execute_complete(context, {"kind": "done"})


def test_why_a_result_is_another_machines_stands_in_the_run_and_nothing_that_it_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied.in_service()
    store.nodes.add(fleet.new_node(NODE, serials={"system": "S-1", "board": "B-1"}))
    revalidation.claim(RUN, PARAMS)
    store.runs.begin_stage(RUN, "intake")
    with pytest.raises(AirflowFailException):
        returned(*fleet.result("intake", serials={"system": "S-1", "board": "B-2"}), monkeypatch)
    with pytest.raises(AirflowFailException):
        revalidation.conclude(RUN)
    run = store.runs.get(RUN)
    assert run.verdict is Verdict.INCONCLUSIVE
    assert f"muster node confirm {NODE} B-2 --board" in run.headline
    kept = store.raw.stage_bytes(RUN, "intake")
    assert kept is None or not kept.result
    node = store.nodes.get(NODE)
    assert (node.state, node.inconclusive) == (State.TRIAGE, 0), "it was never qualified, and serves no more"


@pytest.mark.parametrize(
    ("changed", "corrupt", "ends", "inconclusive", "state"),
    [
        (True, False, remote_job.Inconclusive, 0, State.PRODUCTION),
        (False, False, remote_job.Inconclusive, 1, State.PRODUCTION),
        (True, True, AirflowFailException, 0, State.QUARANTINE),
    ],
)
def test_a_sku_file_that_changed_while_its_probes_ran_is_no_fault_of_the_node(
    changed: bool, corrupt: bool, ends: type[Exception], inconclusive: int, state: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """But what was measured is kept, and a FAIL by what depends on no parameter counts."""
    copied.in_service()
    revalidation.claim(RUN, PARAMS)
    store.runs.begin_stage(RUN, "intake")
    result, raw = fleet.result("intake")
    found = (Evidence("corrupt", "It corrupts data."),) if corrupt else ()
    monkeypatch.setattr(MusterStageOperator, "_evidence", lambda *_: found)
    with pytest.raises(ends):
        returned(result, raw, monkeypatch, work="of another revision" if changed else "")
    kept = store.raw.stage_bytes(RUN, "intake")
    assert kept
    assert kept.result == raw
    assert bool(store.reporting.judgements(RUN)["intake"].replanned) is changed
    job = store.runs.get_job(RUN, "intake")
    assert job
    assert str(outcome.next_attempt(8, job)) == ("8.0" if corrupt else "8.1")
    with pytest.raises(AirflowFailException):
        revalidation.conclude(RUN)
    node = store.nodes.get(NODE)
    assert (node.inconclusive, node.state) == (inconclusive, state)


@pytest.mark.needs_sshd
def test_a_login_that_every_node_refuses_is_the_controllers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a single node refuses is not."""
    with sshd.running(tmp_path / "a") as one, sshd.running(tmp_path / "b") as other:
        monkeypatch.setenv(sshd.CONNECTION, sshd.connection(one.key_file))
        for name, server in (("a", one), ("b", other)):
            node, key = server.node(name), " ".join(server.key_text().split()[:2])
            store.nodes.add(fleet.new_node(name, host=node.host, port=node.port, user=node.user, host_key=key))
        (one.folder / "authorized_keys").write_text("")
        with pytest.raises(ssh.LoginRefused):
            remote_job.log_in(store.nodes.get("a"))
        store.nodes.touch_contact("b")
        with pytest.raises(ControllerFault):
            remote_job.log_in(store.nodes.get("a"))
        (other.folder / "authorized_keys").write_text((one.folder / "login.pub").read_text())
        with pytest.raises(ssh.LoginRefused):
            remote_job.log_in(store.nodes.get("a"))
