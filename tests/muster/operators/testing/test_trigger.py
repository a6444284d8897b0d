"""The trigger, and the logins from Airflow's connections, against a real OpenSSH server."""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from muster import store
from muster.integration import logins
from muster.operators.testing.trigger import JobTrigger
from muster.remote.bmc.bmc import BadBmc, Bmc, Login
from muster.remote.connection import ssh
from muster.remote.connection.ssh import NodeAddress
from muster.remote.job import jobs
from muster.remote.job.attempt_key import AttemptKey
from muster.remote.job.waiting import Wait
from tests.support import standin
from tests.support.servers import sshd

pytestmark = pytest.mark.needs_sshd

KEY = AttemptKey(1).job_key("node_qualification", "n1__new", "burn_in")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    monkeypatch.setattr(store.nodes, "touch_contact", lambda _name: None)
    with sshd.running(tmp_path / "node") as started:
        # What the connection has on hosts, host keys and compression is ignored.
        extra = {"key_file": str(started.key_file), "no_host_key_check": True, "compress": True}
        monkeypatch.setenv(sshd.CONNECTION, json.dumps({"conn_type": "ssh", "host": "elsewhere", "extra": extra}))
        yield started
        sshd.kill_jobs(started.home / "muster")


def start(server: sshd.Sshd, tmp_path: Path, **behave: object) -> jobs.Look:
    agent, sha256 = standin.write(tmp_path / "cache")
    with logins.connect(server.node()) as client:
        seen = jobs.look(client, server.node().work_dir, KEY, sha256)
        jobs.send_agent(client, seen, agent, sha256)
        assert jobs.start(client, seen, KEY, standin.plan(KEY, **behave), {}, sha256)
    return seen


def trigger(server: sshd.Sshd, seen: jobs.Look, host_key: str = "") -> JobTrigger:
    address, deadline = NodeAddress.of(server.node(host_key=host_key)), time.time() + 60
    wait = Wait(address, KEY, seen.work, seen.boot_id, deadline_at=deadline, grace_s=0.0, poll_s=0.2)
    return JobTrigger(wait=wait.to_json(), ssh_conn_id="muster_ssh")


def fire(waiting: JobTrigger) -> dict[str, Any]:
    async def first() -> dict[str, Any]:
        return dict((await anext(waiting.run())).payload)

    return asyncio.run(asyncio.wait_for(first(), 40))


def test_another_triggerer_takes_over_and_no_credentials_travel(server: sshd.Sshd, tmp_path: Path) -> None:
    path, arguments = trigger(server, start(server, tmp_path, exit=7)).serialize()
    assert str(server.key_file) not in json.dumps(arguments)
    module, _, name = path.rpartition(".")
    again = getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))
    assert again.serialize() == (path, arguments)
    assert fire(again) == {"kind": "done"}


def test_the_connection_is_no_second_source_of_trust(server: sshd.Sshd, tmp_path: Path) -> None:
    foreign = server.key_text("foreign")
    with pytest.raises(ssh.WrongHostKey):
        logins.connect(server.node(host_key=foreign))
    assert fire(trigger(server, start(server, tmp_path), foreign))["kind"] == "refused"


def test_a_private_key_in_the_connection_opens_the_node(
    server: sshd.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"private_key": server.key_file.read_text()}
    monkeypatch.setenv(sshd.CONNECTION, json.dumps({"conn_type": "ssh", "extra": extra}))
    assert fire(trigger(server, start(server, tmp_path)))["kind"] == "done"


def test_both_halves_go_through_a_bastion(server: sshd.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = tmp_path / "used"
    relay = (
        "import socket,sys,threading,os\n"
        "s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        f"open({str(used)!r},'a').write('x')\n"
        "def up():\n"
        "    while (d:=os.read(0,65536)): s.sendall(d)\n"
        "threading.Thread(target=up,daemon=True).start()\n"
        "while (d:=s.recv(65536)): os.write(1,d)\n"
    )
    script = tmp_path / "relay.py"
    script.write_text(relay)
    extra = {"key_file": str(server.key_file), "host_proxy_cmd": f"python3 {script} %h %p"}
    monkeypatch.setenv(sshd.CONNECTION, json.dumps({"conn_type": "ssh", "extra": extra}))
    assert fire(trigger(server, start(server, tmp_path)))["kind"] == "done"
    assert used.read_text() == "xx"


@pytest.mark.parametrize(
    ("state", "goes_on"), [("deferred", True), ("failed", False), (None, False), (OSError(), True)]
)
def test_a_kill_stops_the_job_unless_the_task_still_waits_for_it(
    server: sshd.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: object, goes_on: bool
) -> None:
    """A slow triggerer has to kill what another one waits for; only the task's own state decides."""

    def states(**_asked: Any) -> dict[str, dict[str, object]]:
        if isinstance(state, OSError):
            raise state
        return {"n1__new": {"burn_in": state}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    killed = trigger(server, start(server, tmp_path, seconds=600))
    killed.task_instance = SimpleNamespace(
        dag_id="node_qualification", run_id="n1__new", task_id="burn_in", map_index=-1
    )
    asyncio.run(killed.on_kill())
    with logins.connect(server.node()) as client:
        after = jobs.look(client, server.node().work_dir, KEY, "")
    assert (after.state is jobs.State.RUNNING) is goes_on


def test_a_bmc_login_comes_from_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_MY_BMC", json.dumps({"conn_type": "http", "host": "bmc", "login": "root", "password": "secret"})
    )
    assert asyncio.run(logins.bmc_login(Bmc(url="https://bmc", connection="my_bmc"))) == Login("root", "secret")
    with pytest.raises(BadBmc):
        asyncio.run(logins.bmc_login(Bmc(url="https://foreign", connection="my_bmc")))
    assert asyncio.run(logins.bmc_login(Bmc(url="http://bmc"))) == Login()
