"""One real Airflow, and what only a real one does: people who answer or do not, asset events, runs changed by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from muster import store
from muster.integration.airflow_api import AirflowClient, Postponed
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import arrival
from muster.web import PREFIX
from muster_criteria.model import Verdict
from muster_demo.stack import write_password
from tests.dags import blocks, conftest
from tests.dags.blocks import NAMES, Nodes
from tests.dags.conftest import NODE
from tests.muster.fleet import host_key
from tests.support import lives
from tests.support.servers import live_airflow, sshd

pytestmark = [*live_airflow.MARKS, pytest.mark.slow, pytest.mark.early(3)]

QUALIFICATION, NEW_HARDWARE, ADMISSION = "node_qualification", "new_hardware", "admission"
UNNOTICED = "n9"
"""A node about which a person is asked, and none answers."""

FORGED = "n8"
"""A node for which a login of the least role that may start runs decides in another's name."""
OVERTAKEN = "n7"
"""A node that is moved while a person is asked about it."""
ANSWERED = "n6"
"""A node about which a person is asked, and answers."""
MALLORY = ("mallory", "a password of her own")

PATIENCE_H = 0.1
"""How long people are waited for here, in hours: on a busy machine, too, an answer has to come in time."""


@dataclasses.dataclass
class Live:
    """The Airflow, whose retries wait for hours, a node, the block n1 and n2, and a machine not enrolled yet."""

    desk: live_airflow.Desk
    server: sshd.Sshd
    block: Nodes
    newcomer: sshd.Sshd

    def announce(self, key: str, extra: dict[str, Any]) -> None:
        """Send an asset event, as a provisioning system would."""
        client = self.desk.client
        known = client._request("GET", "/assets", params={"name_pattern": arrival.ASSET}).json()["assets"]
        (asset,) = [each["id"] for each in known if each["name"] == arrival.ASSET]
        client._request("POST", "/assets/events", json={"asset_id": asset, "partition_key": key, "extra": extra})

    def muster(self, *args: str) -> subprocess.CompletedProcess[str]:
        """A command of an operator with a login to this Airflow."""
        login = self.desk.stack.login
        environment = {
            "MUSTER_AIRFLOW_URL": login.url, "MUSTER_AIRFLOW_USERNAME": login.username,
            "MUSTER_AIRFLOW_PASSWORD": login.password,
        }  # fmt: skip
        command = [sys.executable, "-c", "from muster.cli import main; main()", *args]
        return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=300)

    def received(self, key: str) -> list[dict[str, Any]]:
        """The runs that have received events under this key; empty while one of them is under way."""
        runs = [run for run in self.desk.runs(NEW_HARDWARE) if run["partition_key"] == key]
        return runs if all(run["state"] in ("success", "failed") for run in runs) else []

    def state(self, run_id: str, task: str) -> str:
        """The state of a task of a qualification."""
        return self.desk.client.task_states(QUALIFICATION, run_id)[task]

    def postponed(self, run_id: str, behind: datetime.timedelta = datetime.timedelta()) -> list[Postponed]:
        """The run's tasks that a wrong clock has put off, to one that is ``behind``."""
        late = self.desk.client.postponed(datetime.datetime.now(datetime.UTC) - behind)
        return [task for task in late if task.run_id == run_id]

    def tested(self, node: str) -> list[str]:
        """The ids of the node's qualification runs."""
        return [run["dag_run_id"] for run in self.desk.runs(QUALIFICATION) if (run["conf"] or {}).get("node") == node]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("MUSTER_ADMISSION_LEVEL", "demo")
        patch.setenv("MUSTER_APPROVAL_HOURS", str(PATIENCE_H))
        patch.setenv("MUSTER_RETRY_SECONDS", "7200")
        stack.enter_context(conftest.empty_records(folder, patch))
        stack.enter_context(conftest.mail_sink(patch))
        server = stack.enter_context(conftest.this_machine(folder, patch))
        block = Nodes(folder, stack, patch, key_file=server.key_file)
        block.build()
        newcomer = block.serve("newcomer", {})
        for name in (UNNOTICED, FORGED, ANSWERED):
            store.nodes.add(NewNode(name, "127.0.0.1", host_key(name), "cpu-generic"))
            lives.qualified(name, "standard" if name == ANSWERED else "demo")
        write_password(folder / "airflow", *MALLORY)
        users = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"operator:admin,{MALLORY[0]}:user"}
        desk = live_airflow.Desk(stack.enter_context(live_airflow.running(folder, NEW_HARDWARE, users)))
        desk.stack.wait_ready(ADMISSION)
        # Its question runs out while the other tests are at work.
        desk.client.trigger(ADMISSION, f"{UNNOTICED}-asked", {"node": UNNOTICED})
        yield Live(desk, server, block, newcomer)


HOUR = datetime.timedelta(hours=1)


def test_what_a_user_does_to_a_waiting_task_reaches_the_node(live: Live) -> None:
    """Marked failed, the burn-in stops on the node; cleared, it is a new job; and the node is free in between."""
    run, client = f"{NODE}__by-hand", live.desk.client
    conf = {"node": NODE, "level": "short", "reason": "x", "force_reason": "a test", "pool": "rack-a"}
    client.trigger(QUALIFICATION, run, conf)
    jobs = live.server.home / "muster" / "jobs"

    def burning() -> list[str]:
        """The jobs that run on the node."""
        alive = []
        for pid in jobs.glob("*/pid"):
            with contextlib.suppress(OSError, psutil.Error):
                if psutil.Process(int(pid.read_text())).status() != psutil.STATUS_ZOMBIE:
                    alive.append(pid.parent.name)
        return alive

    live.desk.wait("the burn-in", lambda: live.state(run, "burn_in") == "deferred" and burning())
    # To a clock that is behind by an hour, its triggerer's heartbeat is one that another clock wrote an hour ahead.
    # A task is deferred before a triggerer takes it.
    live.desk.wait("a triggerer", lambda: live.postponed(run, HOUR))
    assert [late.task_id for late in live.postponed(run, HOUR)] == ["burn_in"]
    assert live.postponed(run) == []
    first = burning()
    assert len(first) == 1
    path = f"/dags/{QUALIFICATION}/dagRuns/{run}/taskInstances/burn_in"
    client._request("PATCH", path, json={"new_state": "failed"})
    live.desk.wait("the end of the work on the node", lambda: burning() == [])
    assert live.desk.wait_over(QUALIFICATION, run) == "failed"
    assert live.state(run, "integrity") == "skipped"
    assert store.runs.get(RunKey(QUALIFICATION, run)).verdict is Verdict.INCONCLUSIVE
    assert store.leases.live() == []

    clear = {"dry_run": False, "dag_run_id": run, "task_ids": ["burn_in"], "only_failed": False,
             "include_downstream": True, "reset_dag_runs": True}  # fmt: skip
    client._request("POST", f"/dags/{QUALIFICATION}/clearTaskInstances", json=clear)
    live.desk.wait("the burn-in again", lambda: live.state(run, "burn_in") == "deferred" and burning())
    assert burning() != first, "a Clear starts a new job"
    assert [lease.run_id for lease in store.leases.live()] == [run]
    live.desk.fail(QUALIFICATION, run)
    live.desk.wait("the end of the work on the node", lambda: burning() == [])
    live.desk.wait("the release", lambda: store.leases.live() == [])


def test_a_retry_that_a_wrong_clock_put_off_begins_at_once(live: Live) -> None:
    """To a clock that is behind by an hour, an end of this moment is what one ahead would have written."""
    live.server.stop()
    run, client = f"{NODE}__put-off", live.desk.client
    conf = {"node": NODE, "level": "demo", "reason": "x", "force_reason": "a test", "pool": "rack-a"}
    client.trigger(QUALIFICATION, run, conf)
    live.desk.wait("a retry", lambda: live.state(run, "intake") == "up_for_retry")
    assert live.postponed(run) == []
    (late,) = live.postponed(run, HOUR)
    assert late.task_id == "intake"
    client.retry(late)
    path = f"/dags/{QUALIFICATION}/dagRuns/{run}/taskInstances/intake"

    def tried_again() -> bool:
        task = client._request("GET", path).json()
        return (task["try_number"], task["state"]) == (2, "up_for_retry")

    live.desk.wait("the end of the next try", tried_again)
    live.desk.fail(QUALIFICATION, run)
    live.desk.wait("the release", lambda: store.leases.live() == [])


def test_a_person_answers_over_rest(live: Live) -> None:
    """The question waits without a worker, and the answer's author is who admits."""
    client = live.desk.client
    client.trigger(ADMISSION, f"{ANSWERED}-asked", {"node": ANSWERED})
    live.desk.wait("the question", lambda: [each for each in client.hitl_pending() if ANSWERED in each["subject"]])
    assert store.leases.live() == [], "no run holds the node while a person thinks"
    live.desk.settle()
    asked, answer = f"{ANSWERED}-asked", ("--option", "Admit", "--reason", "seen it myself")
    assert asked in [each["run"] for each in json.loads(live.muster("approve", "--json").stdout)]
    for refused in (("elsewhere", *answer), (asked, "--option", "Scrap"), (asked, "--option", "Admit")):
        assert live.muster("approve", *refused).returncode == 1
    assert live.muster("approve", asked, *answer).returncode == 0
    assert live.desk.wait_over(ADMISSION, f"{ANSWERED}-asked") == "success"
    assert client.task_states(ADMISSION, f"{ANSWERED}-asked")["retest"] == "skipped"
    assert store.nodes.get(ANSWERED).state is State.PRODUCTION
    (approval,) = store.verdicts.approvals(ANSWERED)
    assert approval.person == live.desk.stack.login.username
    assert approval.at <= datetime.datetime.now(datetime.UTC)
    assert store.leases.live() == []


def test_a_login_that_may_start_runs_decides_for_nobody(live: Live) -> None:
    """It writes the XComs of another's answer, marks the question's task a success, and clears the task behind it."""
    run, claims = f"{FORGED}-asked", {"chosen_options": ["Admit"], "params_input": {"decision_reason": "fine"}}
    live.desk.client.trigger(ADMISSION, run, {"node": FORGED})
    live.desk.wait("the question", lambda: any(FORGED in each["subject"] for each in live.desk.client.hitl_pending()))
    live.desk.settle()
    forged = {**claims, "responded_by_user": {"id": "1", "name": "Petra"}}
    task = f"/dags/{ADMISSION}/dagRuns/{run}/taskInstances/ask"
    with AirflowClient(live.desk.stack.login.url, *MALLORY) as mallory:
        mallory._request("POST", f"{task}/xcomEntries", json={"key": "return_value", "value": forged}, expected=(201,))
        mallory._request("PATCH", task, json={"new_state": "success"})
        assert live.desk.wait_over(ADMISSION, run) == "failed"
        assert f"no answer to run {run}" in live.desk.log(ADMISSION, run, "carry_out")
    assert live.desk.client.task_states(ADMISSION, run)["ask_again"] == "skipped", "nobody had answered"
    assert store.nodes.get(FORGED).state is State.QUALIFIED
    assert store.verdicts.approvals(FORGED) == []


def test_a_question_that_newer_evidence_overtook_is_on_no_list(live: Live) -> None:
    """Airflow keeps it open, and its answer would be refused."""
    store.nodes.add(NewNode(OVERTAKEN, "127.0.0.1", host_key(OVERTAKEN), "cpu-generic"))
    lives.qualified(OVERTAKEN)
    client, login = live.desk.client, live.desk.stack.login
    client.trigger(ADMISSION, f"{OVERTAKEN}-asked", {"node": OVERTAKEN})

    def asked() -> bool:
        return any(OVERTAKEN in each["subject"] for each in client.hitl_pending())

    def listed() -> bool:
        headers = {"Authorization": f"Bearer {client._log_in()}"}
        answer = httpx.get(f"{login.url}{PREFIX}/approvals", headers=headers, timeout=300)
        assert answer.status_code == 200
        return OVERTAKEN in answer.text

    live.desk.wait("the question", asked)
    assert listed()
    store.nodes.move(OVERTAKEN, State.QUARANTINE, "Ada", "its fan is loud")
    assert asked()
    assert not listed()


def test_each_delivery_of_a_node_is_tested_once_however_often_it_is_announced(live: Live) -> None:
    at = live.newcomer.node("newcomer")
    line = {"host": at.host, "port": at.port, "user": getpass.getuser(), "sku": "cpu-generic", "work_dir": at.work_dir,
            "launch": {"kind": "python", "python": sys.executable}}  # fmt: skip
    extra = {"level": "demo", "inventory": line}
    first, second = "newcomer__delivery-po-1", "newcomer__delivery-po-2"
    for _ in range(2):
        live.announce("newcomer__PO-1", extra)
    live.desk.wait("its test", lambda: store.leases.live())
    assert [(lease.node, lease.run_id) for lease in store.leases.live()] == [("newcomer", first)]
    assert store.nodes.get("newcomer").host_key == " ".join(at.host_key.split()[:2]), "pinned as it answered"
    before = len(live.desk.wait("all receipts", lambda: live.received("newcomer__PO-1")))
    live.announce("newcomer__PO-1", extra)
    runs = live.desk.wait("another receipt", lambda: len(runs := live.received("newcomer__PO-1")) > before and runs)
    receipts = [live.desk.client.task_states(NEW_HARDWARE, run["dag_run_id"]) for run in runs]
    # Which of two announcements at once is received first is Airflow's choice.
    assert sorted(each["qualify"] for each in receipts) == ["skipped"] * (len(receipts) - 1) + ["success"]
    again = live.desk.log(NEW_HARDWARE, runs[-1]["dag_run_id"], "receive")
    assert f"newcomer of delivery PO-1 was received before, as run {first}" in again
    assert live.tested("newcomer") == [first]

    live.announce("newcomer__PO-2", {"level": "demo"})
    live.desk.wait("another delivery's run", lambda: second in live.tested("newcomer"))
    assert live.desk.wait_over(QUALIFICATION, second) == "failed"
    assert f"newcomer is leased by run {first}" in live.desk.log(QUALIFICATION, second, "claim")
    assert [(lease.node, lease.run_id) for lease in store.leases.live()] == [("newcomer", first)]

    for key, sentence in (("nobody__PO-1", "no node 'nobody' is enrolled"), ("newcomer", "give NODE__DELIVERY")):
        live.announce(key, {})
        (run,) = live.desk.wait("the refusal", lambda key=key: live.received(key))
        assert run["state"] == "failed"
        assert sentence in live.desk.log(NEW_HARDWARE, run["dag_run_id"], "receive")
    assert live.tested("nobody") == []

    live.desk.fail(QUALIFICATION, first)
    live.desk.wait("the release", lambda: store.leases.live() == [])
    assert store.nodes.get("newcomer").state is State.REGISTERED


def test_a_block_whose_run_is_marked_failed_is_let_go_and_meets_again(live: Live) -> None:
    """Each member is a deferred task of its own in one triggerer, started one after the other by few workers."""
    desk = live.desk
    conf = {"nodes": list(NAMES), "level": "demo", "reason": "a test"}
    desk.client.trigger(blocks.DAG_ID, "block-6", conf)
    desk.wait("the meeting", lambda: all("phase same_batch" in live.block.progress(name) for name in NAMES))
    assert [lease.node for lease in store.leases.live()] == list(NAMES)
    desk.fail(blocks.DAG_ID, "block-6")
    desk.wait("the end of the work on the nodes", lambda: not any(live.block.jobs(name) for name in NAMES))
    desk.wait("the release", lambda: store.leases.live() == [])
    assert {store.nodes.get(name).state for name in NAMES} == {State.QUALIFIED}

    # That a block trains to its end in an Airflow, and enters production, is what the demo's test holds.
    earlier = {name: live.block.logs(name) for name in NAMES}
    desk.client.trigger(blocks.DAG_ID, "block-7", conf)

    def trains(name: str) -> bool:
        return any("phase same_batch" in log.read_text() for log in live.block.logs(name) - earlier[name])

    desk.wait("another meeting", lambda: all(trains(name) for name in NAMES))
    desk.fail(blocks.DAG_ID, "block-7")
    desk.wait("the release", lambda: store.leases.live() == [])


def test_no_person_answers_in_time_and_the_node_stays_out(live: Live) -> None:
    desk, run = live.desk, f"{UNNOTICED}-asked"
    assert desk.wait_over(ADMISSION, run) == "failed"
    assert desk.client.task_states(ADMISSION, run)["carry_out"] == "upstream_failed"
    assert store.nodes.get(UNNOTICED).state is State.QUALIFIED
    last = store.nodes.events(UNNOTICED)[-1]
    assert last.reason.startswith(f"no answer within {PATIENCE_H:g} hours to whether {UNNOTICED} enters production")
    assert last.evidence == {"unanswered": f"{ADMISSION}/{run}"}
    assert last.reason in desk.log(ADMISSION, run, "ask")
    # Airflow takes an answer that comes too late, and does nothing with it.
    desk.client.hitl_answer(ADMISSION, run, "ask", ["Admit"], {"decision_reason": "too late"})
    time.sleep(2.0)
    assert desk.client.task_states(ADMISSION, run)["ask"] == "failed"
    assert store.nodes.get(UNNOTICED).state is State.QUALIFIED
    assert store.verdicts.approvals(UNNOTICED) == []
    assert store.leases.live() == []
