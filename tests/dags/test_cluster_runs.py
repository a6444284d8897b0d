"""Whole runs of cluster_qualification: simulated nodes, each behind a real sshd, that truly meet and train."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk.definitions import dag as sdk_dag
from airflow.sdk.exceptions import AirflowFailException

from muster import records
from muster.airflow_api import AirflowClient
from muster.lifecycle import State
from muster.operators import block, member
from muster.remote import hooks, jobs
from muster_criteria import cluster_plan
from muster_criteria.model import Verdict
from muster_node.hardware.simulated import create_machine
from tests.dags.conftest import Mailbox
from tests.dags.test_real_airflow import airflow  # noqa: F401 - a fixture
from tests.support import airflow_home, lives, sshd

pytestmark = [pytest.mark.needs_sshd, pytest.mark.needs_torch]

DAG_ID = "cluster_qualification"
NAMES = ("n1", "n2")


class Nodes:
    """A block's nodes. ``build`` enrols them as simulated machines that were qualified by decree."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.stack, self.monkeypatch = folder, stack, monkeypatch
        self.servers: dict[str, sshd.Sshd] = {}

    def build(self, faults: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> None:
        for name in NAMES:
            machine = self.folder / f"machine-{name}"
            create_machine(machine, seed=5, faults=(faults or {}).get(name, ()))
            env = {"MUSTER_SIMULATED_HARDWARE": str(machine), "OMP_NUM_THREADS": "1"}
            server = self.stack.enter_context(sshd.running(self.folder / name, env))
            self.stack.callback(sshd.kill_jobs, server.home / "muster")
            self.servers[name] = server
            first = next(iter(self.servers.values()))
            (server.folder / "authorized_keys").write_text(first.key_text("login"))
            self.monkeypatch.setenv("MUSTER_SSH_KEY_FILE", str(first.key_file))
            node = server.node(name)
            records.add_node(
                records.NewNode(
                    name, node.host, " ".join(node.host_key.split()[:2]), "h100-sxm-8", port=node.port,
                    user=node.user or "", launch={"kind": "python", "python": sys.executable},
                    work_dir=node.work_dir, simulated=True,
                )
            )  # fmt: skip
            lives.qualified(name)


class Meeting:
    """dag.test() runs one task after the other to its end, while members have to be at work at once.

    So when the first member waits for its job, the jobs of the others are started, by the operator's own code; their
    tasks then find them. ``absent`` are not started here, and come too late.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.absent: set[str] = set()
        self.block: dict[str, Any] = {}
        self.run: tuple[str, str] = ("", "")
        self.at_work = lambda: None
        claim, wait = block.claim, sdk_dag._run_inline_trigger

        def claimed(dag_id: str, run_id: str, *more: Any) -> dict[str, Any]:
            self.run, self.block = (dag_id, run_id), claim(dag_id, run_id, *more)
            return self.block

        def waited(trigger: Any, ti: Any) -> Any:
            self.start_others()
            self.at_work()
            return wait(trigger, ti)

        monkeypatch.setattr(block, "claim", claimed)
        monkeypatch.setattr(sdk_dag, "_run_inline_trigger", waited)

    def start_others(self) -> None:
        for name in self.block["members"]:
            if name in self.absent or records.get_job(*self.run, member.STAGE, node=name) is not None:
                continue
            operator = member.MusterMemberOperator(task_id="train", member=name, claims="claim_block", retries=2)
            ti = SimpleNamespace(
                dag_id=self.run[0], run_id=self.run[1], task_id="train", max_tries=2, try_number=1,
                xcom_pull=lambda **_: self.block,
            )  # fmt: skip
            work = operator._work(cast("Any", {"ti": ti}), begin=True)
            with operator._connect(work.node) as client:
                operator._start(client, work, jobs.look(client, work.node.work_dir, work.key, work.agent.sha256))


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    monkeypatch.setattr(cluster_plan, "JOIN_TIMEOUT_S", 30.0)
    return Meeting(monkeypatch)


@pytest.fixture
def nodes(airflow_db: None, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        yield Nodes(tmp_path, stack, monkeypatch)


def validate(**changes: Any) -> tuple[dict[str, str], str]:
    """Run the DAG: the tasks' states, mapped ones as "train[n1]", and the run's id."""
    from airflow.dag_processing.dagbag import DagBag

    dag = DagBag(str(airflow_home.ROOT / "dags")).dags[DAG_ID]
    run = dag.test(run_conf={"nodes": list(NAMES), "level": "demo", "reason": "a test", **changes})
    states = {}
    for instance in run.get_task_instances():
        name = f"train[{NAMES[instance.map_index]}]" if instance.map_index >= 0 else instance.task_id
        states[name] = str(instance.state)
    return {**states, "run": str(run.state)}, run.run_id


def verdicts(run_id: str) -> dict[str, Verdict | None]:
    return {name: records.get_run(DAG_ID, run_id, node=name).verdict for name in NAMES}


def asked() -> list[str]:
    """The runs of the admission DAG that wait for a person."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(DagRun.run_id).where(DagRun.dag_id == "admission")))


def test_a_good_block_meets_trains_and_enters_production(
    nodes: Nodes, meeting: Meeting, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "demo")
    nodes.build()
    states, run_id = validate()
    assert {states[name] for name in ("train[n1]", "train[n2]", "admit", "conclude", "report", "run")} == {"success"}
    assert states["ask"] == "skipped", "nobody has to be asked"
    assert verdicts(run_id) == {"n1": Verdict.PASS, "n2": Verdict.PASS}
    for name in NAMES:
        (said,) = records.run_stages(DAG_ID, run_id, node=name)
        assert said.full_coverage
        last = records.node_events(name)[-1]
        assert (last.from_state, last.to_state) == (State.CLUSTER_VALIDATION, State.PRODUCTION)
        assert last.evidence["full_coverage"]
        assert list((nodes.servers[name].home / "muster" / "jobs").iterdir()) == [], "every job was tidied up"
    assert records.live_leases() == []
    assert sorted(mail["Subject"].split(":")[0] for mail in mailbox.mails) == [
        "[Muster] [simulated] PASS n1", "[Muster] [simulated] PASS n2",
    ]  # fmt: skip


def test_a_member_that_corrupts_is_convicted_and_the_other_cleared(nodes: Nodes, meeting: Meeting) -> None:
    nodes.build({"n2": [{"kind": "sdc", "gpu": 3}]})
    states, run_id = validate()
    assert verdicts(run_id) == {"n1": Verdict.PASS, "n2": Verdict.FAIL}
    assert "gpu3" in records.get_run(DAG_ID, run_id, node="n2").headline
    assert records.get_node("n2").state is State.QUARANTINE
    assert records.get_node("n1").state is State.QUALIFIED, "the gate asks for more than a demo's pass"
    assert (states["conclude"], states["run"]) == ("failed", "failed")
    assert [run.split("__")[0] for run in asked()] == ["n1"], "a person is asked about n1, and not about n2"
    assert records.live_leases() == []


def test_a_member_that_does_not_come_up_is_named_and_nobody_hangs(
    nodes: Nodes, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "RETRY_SECONDS", 0.1)
    nodes.build()
    meeting.absent = {"n2"}
    meeting.at_work = nodes.servers["n2"].stop
    states, run_id = validate()
    assert (states["train[n1]"], states["train[n2]"], states["judge_block"]) == ("success", "failed", "success")
    assert verdicts(run_id) == {"n1": Verdict.SKIPPED, "n2": Verdict.INCONCLUSIVE}
    (said,) = records.run_stages(DAG_ID, run_id, node="n1")
    assert "n2" in said.reason
    assert (records.get_node("n1").inconclusive, records.get_node("n2").inconclusive) == (0, 1), "nobody pays for n2"
    assert {records.get_node(name).state for name in NAMES} == {State.QUALIFIED}
    assert records.live_leases() == []


def test_a_block_is_taken_whole_or_not_at_all(nodes: Nodes, meeting: Meeting) -> None:
    nodes.build()
    records.acquire_lease("n2", "cluster_qualification", "another-run")
    states, _ = validate()
    assert (states["claim_block"], states["run"]) == ("failed", "failed")
    assert [(lease.node, lease.run_id) for lease in records.live_leases()] == [("n2", "another-run")]
    assert records.get_node("n1").state is State.QUALIFIED


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"nodes": ["n1"]}, "at least two nodes"),
        ({"nodes": ["n1", "n1"]}, "each named once"),
        ({"nodes": ["n1", "nobody"]}, "no node 'nobody'"),
        ({"nodes": ["n1", "n2"]}, "n1 is registered"),
        ({"nodes": ["n1", "n2"], "level": "quick"}, "no level 'quick'"),
    ],
)
def test_what_a_person_must_put_right_is_one_sentence(fleet: Path, params: dict[str, Any], complaint: str) -> None:
    for name in NAMES:
        key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + name.ljust(43, "0")
        records.add_node(records.NewNode(name, "127.0.0.1", key, "h100-sxm-8"))
    with pytest.raises(AirflowFailException, match=complaint):
        block.claim(DAG_ID, "r", {"level": "demo", "reason": "x", **params})
    assert records.live_leases() == []


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_members_meet_under_a_real_airflow(
    server: sshd.Sshd, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Each member a deferred task of its own in one triggerer, started one after the other by few workers."""
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "demo")
    nodes.build()
    stack = request.getfixturevalue("airflow")  # only now: it takes over the settings of the nodes
    client = AirflowClient(stack.login.url, stack.login.username, stack.login.password)
    end = time.monotonic() + 240
    client.trigger(DAG_ID, "block-7", {"nodes": list(NAMES), "level": "demo", "reason": "a test"})
    while client.run_state(DAG_ID, "block-7") not in ("success", "failed"):
        assert time.monotonic() < end, client.task_states(DAG_ID, "block-7")
        time.sleep(1)
    states = client.task_states(DAG_ID, "block-7")
    assert client.run_state(DAG_ID, "block-7") == "success", states
    assert (states["train[0]"], states["train[1]"], states["ask"]) == ("success", "success", "skipped")
    assert {records.get_node(name).state for name in NAMES} == {State.PRODUCTION}
    assert records.live_leases() == []
