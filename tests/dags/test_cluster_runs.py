"""Whole runs of cluster_qualification: simulated nodes, each behind a real sshd, that truly meet and train."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.errors import MusterError, UnknownNode
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.testing import block
from muster.remote.connection import ssh
from muster_criteria.cluster import plan as cluster_plan
from muster_criteria.model import Verdict
from tests.dags.blocks import DAG_ID, NAMES, Meeting, Nodes, validate, verdicts
from tests.dags.conftest import Mailbox
from tests.support.refusals import caused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs_sshd,
    pytest.mark.needs_torch,
    pytest.mark.early(6),
]


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    monkeypatch.setattr(cluster_plan, "JOIN_TIMEOUT_S", 30.0)
    return Meeting(monkeypatch)


@pytest.fixture
def nodes(airflow_db: None, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        yield Nodes(tmp_path, stack, monkeypatch)


def questions() -> list[str]:
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
    assert states["ask"] == "skipped", "no person has to be asked"
    assert verdicts(run_id) == {"n1": Verdict.PASS, "n2": Verdict.PASS}
    for name in NAMES:
        (stored,) = store.runs.stages(RunKey(DAG_ID, run_id), node=name)
        assert stored.full_coverage
        last = store.nodes.events(name)[-1]
        assert (last.from_state, last.to_state) == (State.CLUSTER_VALIDATION, State.PRODUCTION)
        assert last.evidence["full_coverage"]
        assert list((nodes.servers[name].home / "muster" / "jobs").iterdir()) == [], "every job was tidied up"
    assert store.leases.live() == []
    assert len(mailbox.mails) == len(NAMES)
    for name in NAMES:
        (mail,) = mailbox.about(f" {name} ")
        assert mail["Subject"].startswith(f"[Muster] PASS {name} [simulated]")


def test_a_member_that_corrupts_fails_and_the_other_cleared(nodes: Nodes, meeting: Meeting) -> None:
    nodes.build({"n2": [{"kind": "sdc", "gpu": 3}]})
    before = questions()
    states, run_id = validate()
    assert verdicts(run_id) == {"n1": Verdict.PASS, "n2": Verdict.FAIL}
    assert "gpu3" in store.runs.get(RunKey(DAG_ID, run_id), node="n2").headline
    assert store.nodes.get("n2").state is State.QUARANTINE
    assert store.nodes.get("n1").state is State.QUALIFIED, "the gate asks for more than a demo's pass"
    assert (states["conclude"], states["run"]) == ("failed", "failed")
    assert [run.split("__")[0] for run in questions() if run not in before] == ["n1"], (
        "a person is asked about n1, and not about n2"
    )
    assert store.leases.live() == []


def test_a_member_that_does_not_come_up_is_named_and_none_hangs(
    nodes: Nodes, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(cluster_plan, "JOIN_TIMEOUT_S", 5.0)  # n2 never joins, in any round
    nodes.build()
    meeting.absent = {"n2"}
    meeting.once_claimed = nodes.servers["n2"].stop
    states, run_id = validate()
    assert (states["gather"], states["train"], states["judge_block"]) == ("failed", "upstream_failed", "success")
    assert verdicts(run_id) == {"n1": Verdict.SKIPPED, "n2": Verdict.INCONCLUSIVE}
    assert "n2" in store.runs.get(RunKey(DAG_ID, run_id), node="n1").headline
    assert (store.nodes.get("n1").inconclusive, store.nodes.get("n2").inconclusive) == (0, 1), "n2 alone is charged"
    assert {store.nodes.get(name).state for name in NAMES} == {State.QUALIFIED}
    assert store.leases.live() == []


def test_a_block_is_taken_whole_or_not_at_all(nodes: Nodes, meeting: Meeting) -> None:
    nodes.build()
    store.leases.acquire("n2", RunKey("cluster_qualification", "another-run"))
    states, _ = validate()
    assert (states["claim_block"], states["run"]) == ("failed", "failed")
    assert [(lease.node, lease.run_id) for lease in store.leases.live()] == [("n2", "another-run")]
    assert store.nodes.get("n1").state is State.QUALIFIED


@pytest.mark.parametrize(
    ("params", "cause"),
    [
        ({"nodes": ["n1"]}, MusterError),
        ({"nodes": ["n1", "n1"]}, MusterError),
        ({"nodes": ["n1", "nobody"]}, UnknownNode),
        ({"nodes": ["n1", "n2"]}, MusterError),
        ({"nodes": ["n1", "n2"], "level": "quick"}, MusterError),
    ],
)
def test_what_a_person_must_put_right_is_one_sentence(
    fleet: Path, params: dict[str, Any], cause: type[Exception]
) -> None:
    for name in NAMES:
        key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + name.ljust(43, "0")
        store.nodes.add(NewNode(name, "127.0.0.1", key, "h100-sxm-8"))
    with caused(AirflowFailException, cause):
        block.claim(RunKey(DAG_ID, "r"), {"level": "demo", "reason": "x", **params})
    assert store.leases.live() == []
