"""The trigger against a real OpenSSH server: it waits through trouble, tells what ended the job, and can kill it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from muster.remote import jobs, scripts, ssh
from muster.remote.hooks import NodeAddress, NodeSSHHook, NodeSSHHookAsync
from muster.remote.trigger import MusterJobTrigger
from muster.remote.watch import Watch
from tests.support import sshd, standin

pytestmark = [pytest.mark.needs_sshd, pytest.mark.early(12)]

KEY = jobs.job_key("node_qualification", "n1__new", "burn_in", "1")


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    file = tmp_path / "boot_id"
    file.write_text("first\n")
    return file


@pytest.fixture
def server(tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path / "node", {"MUSTER_BOOT_ID_FILE": str(boot)}) as started:
        extra = {"key_file": str(started.key_file), "look_for_keys": False}
        connection = {"conn_type": "ssh", "login": "nobody-of-that-name", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_MUSTER_SSH", json.dumps(connection))
        yield started
        sshd.kill_jobs(started.home / "muster")


@pytest.fixture(autouse=True)
def touched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Contacts are noted here instead of in a database."""
    from muster import records

    names: list[str] = []
    monkeypatch.setattr(records, "touch_contact", names.append)
    return names


def start(client: paramiko.SSHClient, server: sshd.Sshd, tmp_path: Path, **behave: object) -> jobs.Look:
    agent, sha256 = standin.write(tmp_path / "cache")
    seen = jobs.look(client, server.node().work_dir, KEY, sha256)
    jobs.send_agent(client, seen, agent, sha256)
    assert jobs.start(client, seen, KEY, standin.plan(KEY, **behave), {}, sha256)
    return seen


def trigger(server: sshd.Sshd, seen: jobs.Look, **changes: Any) -> MusterJobTrigger:
    arguments: dict[str, Any] = {
        "ssh_conn_id": "muster_ssh",
        "node": dataclasses.asdict(NodeAddress.of(server.node())),
        "job_id": KEY,
        "work": seen.work,
        "boot_id": seen.boot_id,
        "deadline_at": time.time() + 60,
        "grace_s": 0.0,
        "poll_interval": 0.2,
    }
    return MusterJobTrigger(**{**arguments, **changes})


async def first_event(waiting: MusterJobTrigger) -> dict[str, Any]:
    events = waiting.run()
    try:
        return dict((await anext(events)).payload)
    finally:
        await events.aclose()


def fire(waiting: MusterJobTrigger, *during: tuple[float, Callable[[], object]]) -> dict[str, Any]:
    """Run the trigger to its event; each of ``during`` is called so many seconds after the start."""

    async def both() -> dict[str, Any]:
        async def later(seconds: float, act: Callable[[], object]) -> None:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(act)

        acts = [asyncio.create_task(later(*each)) for each in during]
        event = await asyncio.wait_for(first_event(waiting), 40)
        await asyncio.gather(*acts)
        return event

    return asyncio.run(both())


def test_it_can_be_taken_up_by_another_triggerer(server: sshd.Sshd) -> None:
    seen = jobs.Look("/h", "/h/.muster", "boot", "ok", jobs.State.RUNNING, None)
    watch = dataclasses.asdict(Watch({"url": "http://bmc"}, 900.0, "dag", "run", "burn_in", "0.0"))
    waiting = trigger(server, seen, watch=watch, log_offset=7, removal="podman rm -f x", command_timeout=3.0)
    path, arguments = waiting.serialize()
    module, _, name = path.rpartition(".")
    again = getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))
    assert again.serialize() == waiting.serialize()
    assert "key" not in " ".join(arguments), "no credentials travel with a trigger"


def test_the_end_of_the_job(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, touched: list[str]) -> None:
    seen = start(client, server, tmp_path, seconds=1, exit=7)
    event = fire(trigger(server, seen))
    assert (event["kind"], event["exit_code"], event["job_id"]) == ("done", 7, KEY)
    assert touched == ["this-node"]


def test_a_bmc_is_read_meanwhile_and_what_it_does_not_tell_ends_nothing(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    async def read(self: Watch) -> str:
        reads.append(self.stage)
        if len(reads) == 2:
            raise OSError("it is gone")
        return "it is slow"

    monkeypatch.setattr(Watch, "read", read)
    watch = dataclasses.asdict(Watch({"url": "http://bmc"}, 0.5, "dag", "run", "burn_in", "0.0"))
    event = fire(trigger(server, start(client, server, tmp_path, seconds=4), watch=watch))
    assert event["kind"] == "done"
    assert 3 <= len(reads) <= 8


def test_the_provider_would_understand_the_event(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    """SSHRemoteJobOperator.execute_complete names the keys that it needs."""
    event = fire(trigger(server, start(client, server, tmp_path)))
    assert {"job_id", "job_dir", "log_file", "exit_code_file", "remote_os", "done"} <= set(event)
    assert event["status"] == "success"


def test_one_connection_serves_all_polls(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=2)
    before = server.log_file.read_text().count("Accepted publickey")
    fire(trigger(server, seen))
    assert server.log_file.read_text().count("Accepted publickey") == before + 1


def test_a_lost_connection_is_no_error(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=5)
    event = fire(trigger(server, seen), (0.7, server.drop_connections), (1.4, server.stop), (3.0, server.start))
    assert (event["kind"], event["exit_code"]) == ("done", 0)
    assert (Path(jobs.paths(seen.work, KEY).job_dir) / "starts").read_text().count("\n") == 1


def test_a_frozen_session_is_left_for_a_new_one(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=4)
    event = fire(trigger(server, seen, command_timeout=1.0), (1.0, lambda: server.freeze(listener=False)))
    assert event["kind"] == "done"


@pytest.fixture
def compressing(tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    """A server that only accepts compressed connections would be refused; one that offers it gets none."""
    with sshd.running(tmp_path / "node", {"MUSTER_BOOT_ID_FILE": str(boot)}) as started:
        extra = {"key_file": str(started.key_file), "look_for_keys": False, "compress": True}
        monkeypatch.setenv("AIRFLOW_CONN_MUSTER_SSH", json.dumps({"conn_type": "ssh", "extra": extra}))
        yield started


def test_no_half_lets_a_node_compress(compressing: sshd.Sshd) -> None:
    """paramiko inflates whole packets before any cap is applied: 150 KB on the wire become 150 MB in memory."""
    with NodeSSHHook(compressing.node(), "muster_ssh").get_conn() as client:
        transport = client.get_transport()
        assert transport is not None
        assert (transport.remote_compression, transport.local_compression) == ("none", "none")

    async def negotiated() -> set[Any]:
        conn = await NodeSSHHookAsync(NodeAddress.of(compressing.node()), "muster_ssh").get_conn()
        async with conn:
            return {conn.get_extra_info("recv_compression"), conn.get_extra_info("send_compression")}

    assert asyncio.run(negotiated()) == {"none"}


def test_a_reboot_is_told(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, boot: Path) -> None:
    seen = start(client, server, tmp_path, seconds=60)

    def crash() -> None:
        server.stop()
        pid = (Path(jobs.paths(seen.work, KEY).job_dir) / "pid").read_text()
        os.killpg(int(pid), signal.SIGKILL)  # never /bin/kill: some versions take "-PID" for "everybody"
        boot.write_text("second\n")
        server.start()

    event = fire(trigger(server, seen), (0.7, crash))
    assert event["kind"] == "rebooted"


def test_a_process_that_vanished_is_told(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=1, die=True)
    event = fire(trigger(server, seen))
    assert (event["kind"], event["exit_code"]) == ("vanished", None)


def test_a_node_that_stays_away_is_lost_only_after_the_deadline(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path
) -> None:
    seen = start(client, server, tmp_path, seconds=60)
    deadline = time.time() + 4
    event = fire(trigger(server, seen, deadline_at=deadline, grace_s=1.0), (0.5, server.stop))
    assert event["kind"] == "lost"
    assert time.time() > deadline + 1


def test_a_job_that_ignores_its_deadline_is_told(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=60)
    assert fire(trigger(server, seen, deadline_at=time.time() + 1))["kind"] == "overdue"


def test_another_host_key_ends_the_waiting(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=1)
    node = dataclasses.asdict(NodeAddress.of(server.node(host_key=server.key_text("stranger"))))
    event = fire(trigger(server, seen, node=node))
    assert event["kind"] == "refused"
    assert "host key" in event["message"]


def test_a_login_that_stays_refused_is_no_lost_node(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path
) -> None:
    """A key that was taken off the node must never count as evidence against its hardware."""
    seen = start(client, server, tmp_path, seconds=60)
    (server.folder / "authorized_keys").write_text("")
    assert fire(trigger(server, seen, deadline_at=time.time() + 1))["kind"] == "refused"


def test_a_node_that_floods_or_babbles_does_not_fill_our_memory(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = start(client, server, tmp_path, seconds=60)
    monkeypatch.setattr(scripts, "POLL", "yes")
    event = fire(trigger(server, seen, deadline_at=time.time() + 1))
    assert event["kind"] == "lost"


def test_what_the_job_prints_reaches_the_log_cleaned(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = start(client, server, tmp_path, seconds=1)
    waiting = trigger(server, seen)
    told: list[str] = []
    monkeypatch.setattr(waiting.log, "info", lambda text, *values: told.append(text % values))
    fire(waiting)
    assert told.count("[this-node] �[2Jworking") == 1


def test_on_kill_stops_the_work_on_the_node(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    """Mark a task failed in the UI, and the burn-in stops."""
    seen = start(client, server, tmp_path, seconds=600, child=True)
    folder = Path(jobs.paths(seen.work, KEY).job_dir)
    while not (folder / "starts").exists():
        time.sleep(0.05)
    time.sleep(0.2)
    began = time.monotonic()
    asyncio.run(trigger(server, seen).on_kill())
    assert time.monotonic() - began < 8
    group = (folder / "pid").read_text()
    left = subprocess.run(["ps", "-o", "stat=", "-g", group], capture_output=True, text=True, check=False).stdout
    assert [line for line in left.splitlines() if not line.startswith("Z")] == []


@pytest.mark.parametrize(
    ("state", "goes_on"), [("deferred", True), ("failed", False), (None, False), (OSError(), True)]
)
def test_a_kill_in_a_triggerer_that_has_lost_the_task_to_another_ends_nothing(
    server: sshd.Sshd,
    client: paramiko.SSHClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: object,
    goes_on: bool,
) -> None:
    """A slow triggerer is told to kill what another one awaits; only the task's own state says whether to."""

    def states(**_asked: Any) -> dict[str, dict[str, object]]:
        if isinstance(state, OSError):
            raise state
        return {"n1__new": {"burn_in": state}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    seen = start(client, server, tmp_path, seconds=600)
    told = trigger(server, seen)
    told.task_instance = SimpleNamespace(dag_id="node_qualification", run_id="n1__new", task_id="burn_in", map_index=-1)
    asyncio.run(told.on_kill())
    after = jobs.look(client, server.node().work_dir, KEY, "")
    assert (after.state is jobs.State.RUNNING) is goes_on


def test_without_a_connection_the_settings_say_who_we_are(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_MUSTER_SSH")
    monkeypatch.setenv("MUSTER_SSH_KEY_FILE", str(server.key_file))
    seen = start(client, server, tmp_path)
    assert fire(trigger(server, seen))["kind"] == "done"
    with NodeSSHHook(server.node(), "muster_ssh").get_conn() as connected:
        assert ssh.run(connected, "echo here").out == b"here\n"


def test_both_halves_set_aside_what_the_connection_says_of_host_keys(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host key source for both halves: an Airflow connection that switches the check off changes nothing."""
    extra = {"key_file": str(server.key_file), "no_host_key_check": True, "allow_host_key_change": True}
    monkeypatch.setenv("AIRFLOW_CONN_MUSTER_SSH", json.dumps({"conn_type": "ssh", "extra": extra}))
    stranger = server.node(host_key=server.key_text("stranger"))
    with pytest.raises(ssh.WrongHostKey):
        NodeSSHHook(stranger, "muster_ssh").get_conn()
    seen = start(client, server, tmp_path)
    assert fire(trigger(server, seen, node=dataclasses.asdict(NodeAddress.of(stranger))))["kind"] == "refused"
    assert fire(trigger(server, seen))["kind"] == "done"


def test_a_cancellation_that_comes_with_an_answer_is_heeded(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asyncssh may lose it on Python 3.11: a triggerer that lets go of a job must not go on asking for hours."""
    waiting = trigger(server, start(client, server, tmp_path, seconds=60))
    poll, asked = waiting._poll, 0

    async def deaf(conn: Any) -> Any:
        nonlocal asked
        asked += 1
        answer = asyncio.ensure_future(poll(conn))
        while not answer.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(answer)
        return answer.result()

    monkeypatch.setattr(waiting, "_poll", deaf)

    async def cancelled() -> None:
        task = asyncio.ensure_future(anext(waiting.run()))
        while not asked:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)

    asyncio.run(cancelled())
    assert asked == 1
