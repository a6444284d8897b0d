"""A real Airflow, its components killed in the middle of a run: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from muster import store
from muster.errors import AlreadyTriggered
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.states import State
from muster_criteria.model import Verdict
from muster_demo.stack import Stack
from tests.dags.conftest import NODE, Mailbox
from tests.support.servers import live_airflow, sshd

pytestmark = [*live_airflow.MARKS, pytest.mark.slow, pytest.mark.early(4)]

DAG_ID = "node_qualification"
STAGES = ["intake", "burn_in", "integrity", "performance", "thermal"]
RUN_ID = "this-node__kill-and-restart"


@pytest.fixture
def counted(server: sshd.Sshd, tmp_path: Path) -> Path:
    """Have every start of the node side noted, by an interpreter that says so first; gives the diary."""
    diary = tmp_path / "starts"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$2" = run ] && echo "$3" >>{diary}\nexec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    node = server.node(NODE)
    store.nodes.add(
        NewNode(
            NODE, node.host, " ".join(node.host_key.split()[:2]), "cpu-generic", port=node.port, user=node.user or "",
            launch={"kind": "python", "python": str(python)}, work_dir=node.work_dir, pool="rack-a",
        )
    )  # fmt: skip
    return diary


@pytest.fixture
def airflow(server: sshd.Sshd, mailbox: Mailbox, tmp_path: Path) -> Iterator[Stack]:
    """An Airflow of the test's own, since its components are killed."""
    quick = {"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10", "MUSTER_RETRY_SECONDS": "5"}
    with live_airflow.running(tmp_path, DAG_ID, quick) as stack:
        yield stack


class Run(live_airflow.Desk):
    """One run, watched over REST."""

    def __init__(self, stack: Stack, run_id: str) -> None:
        super().__init__(stack)
        self.id = run_id

    def states(self) -> dict[str, str]:
        return self.client.task_states(DAG_ID, self.id)

    def kill(self, component: str) -> None:
        """As hard as it gets, without a chance to tidy up; then start it again, as systemd would."""
        service = self.stack.supervisor.services[component]
        os.kill(service.pid, signal.SIGKILL)
        service.process.wait(60)
        self.stack.supervisor.start(component, service.command, service.environment)


def test_components_die_in_mid_run_and_nothing_is_lost_or_run_twice(
    airflow: Stack, server: sshd.Sshd, counted: Path, mailbox: Mailbox
) -> None:
    run = Run(airflow, RUN_ID)
    conf = {"node": NODE, "level": "demo", "reason": "kill and restart", "force_reason": "a test"}
    triggered = httpx.post(
        f"{airflow.login.url}/api/v2/dags/{DAG_ID}/dagRuns",
        headers={"Authorization": f"Bearer {airflow.token()}"},
        json={"logical_date": None, "dag_run_id": RUN_ID, "conf": conf},
        timeout=300,
    )
    assert triggered.status_code in (200, 201), triggered.text
    with pytest.raises(AlreadyTriggered):
        run.client.trigger(DAG_ID, RUN_ID, conf)

    run.wait("the burn-in", lambda: run.states()["burn_in"] == "deferred")
    pools = run.client._request("GET", "/pools/rack-a").json()
    assert (pools["slots"], pools["include_deferred"], pools["deferred_slots"]) == (1, True, 1)
    run.kill("scheduler")
    run.wait("the burn-in's end", lambda: run.states()["burn_in"] in ("success", "failed"))
    run.wait("integrity", lambda: run.states()["integrity"] == "deferred")
    run.kill("triggerer")
    run.kill("scheduler")
    run.wait("the end", lambda: run.client.run_state(DAG_ID, RUN_ID) in ("success", "failed"))

    started = [Path(line).parent.name for line in counted.read_text().splitlines()]
    assert len(started) == len(set(started)) == len(STAGES), f"a job was started twice: {started}; {run.states()}"
    summaries = store.runs.stages(RunKey(DAG_ID, RUN_ID))
    assert [(each.stage, each.attempts) for each in summaries] == [(stage, 1) for stage in STAGES]
    ended = store.runs.get(RunKey(DAG_ID, RUN_ID))
    assert ended.verdict in (Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL), ended.headline
    assert store.nodes.get(NODE).state is State.QUALIFIED
    assert store.leases.live() == []
    assert len(mailbox.about(NODE)) == 1
    assert list((server.home / "muster" / "jobs").iterdir()) == []
    listed = run.client._request("GET", f"/dags/{DAG_ID}/dagRuns/{RUN_ID}/taskInstances/burn_in").json()
    assert (listed["try_number"], listed["pool"]) == (1, "rack-a")
