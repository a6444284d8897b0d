"""Waiting for a job on a real OpenSSH server: through trouble, until the job is over or its time is."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import errno
import functools
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest

from muster import store
from muster.remote.bmc.bmc import Bmc, Login
from muster.remote.bmc.watch import BmcWatch
from muster.remote.connection.login import Credentials
from muster.remote.connection.ssh import NodeAddress
from muster.remote.job import jobs, scripts, waiting
from muster.remote.job.attempt_key import AttemptKey
from muster.remote.job.outcome import Kind
from muster.remote.job.waiting import Wait, Waiter
from tests.support import standin
from tests.support.servers import sshd

pytestmark = [pytest.mark.needs_sshd, pytest.mark.early(12)]

KEY = AttemptKey(1).job_key("node_qualification", "n1__new", "burn_in")


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    file = tmp_path / "boot_id"
    file.write_text("first\n")
    return file


@pytest.fixture
def server(tmp_path: Path, boot: Path) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path / "node", {"MUSTER_BOOT_ID_FILE": str(boot)}) as started:
        yield started
        sshd.kill_jobs(started.home / "muster")


@pytest.fixture(autouse=True)
def touched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Contacts are noted here instead of in a database."""
    names: list[str] = []
    monkeypatch.setattr(store.nodes, "touch_contact", names.append)
    return names


def start(client: paramiko.SSHClient, server: sshd.Sshd, tmp_path: Path, **behave: object) -> jobs.Look:
    agent, sha256 = standin.write(tmp_path / "cache")
    seen = jobs.look(client, server.node().work_dir, KEY, sha256)
    jobs.send_agent(client, seen, agent, sha256)
    assert jobs.start(client, seen, KEY, standin.plan(KEY, **behave), {}, sha256)
    return seen


async def no_bmc(_bmc: Bmc) -> Login:
    raise AssertionError("the node has no BMC")


def waiter(server: sshd.Sshd, seen: jobs.Look, **changes: Any) -> Waiter:
    async def who() -> Credentials:
        return Credentials(key_file=str(server.key_file))

    address, deadline = NodeAddress.of(server.node()), time.time() + 60
    wait = Wait(address, KEY, seen.work, seen.boot_id, deadline_at=deadline, grace_s=0.0, poll_s=0.2)
    return Waiter(dataclasses.replace(wait, **changes), who, no_bmc)


def until_over(waiter: Waiter, *during: tuple[float, Callable[[], object]]) -> Kind:
    """Wait to the end; each of ``during`` is called so many seconds after the start."""

    async def both() -> Kind:
        async def later(seconds: float, act: Callable[[], object]) -> None:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(act)

        acts = [asyncio.create_task(later(*each)) for each in during]
        over = await asyncio.wait_for(waiter.until_over(), 40)
        await asyncio.gather(*acts)
        return over

    return asyncio.run(both())


def test_another_process_can_take_over() -> None:
    address = NodeAddress("n", "h", 22, "u", "ssh-ed25519 AAAA")
    watch = BmcWatch({"url": "http://bmc"}, 900.0, "dag", "run", "burn_in", "0.0")
    for wait in (Wait(address, KEY, "/w", "boot", 1.0, 2.0, 3.0, 4.0, watch),
                 Wait(address, KEY, "/w", "boot", 1.0, 2.0, 3.0)):  # fmt: skip
        assert Wait.from_json(json.loads(json.dumps(wait.to_json()))) == wait


def test_the_end_of_the_job(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, touched: list[str]) -> None:
    seen = start(client, server, tmp_path, seconds=1, exit=7)
    over = until_over(waiter(server, seen))
    assert over is Kind.DONE
    assert touched == ["this-node"]


def test_a_bmc_is_read_meanwhile_and_its_failure_ends_nothing(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    async def read(self: BmcWatch, login: object) -> str:
        assert login is no_bmc
        reads.append(self.stage)
        if len(reads) == 2:
            raise OSError("it is gone")
        return "it is slow"

    monkeypatch.setattr(BmcWatch, "read", read)
    watch = BmcWatch({"url": "http://bmc"}, 0.5, "dag", "run", "burn_in", "0.0")
    over = until_over(waiter(server, start(client, server, tmp_path, seconds=4), watch=watch))
    assert over is Kind.DONE
    assert 3 <= len(reads) <= 8


def test_one_connection_serves_all_polls(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=2)
    before = server.log_file.read_text().count("Accepted publickey")
    until_over(waiter(server, seen))
    assert server.log_file.read_text().count("Accepted publickey") == before + 1


def test_a_lost_connection_is_no_error(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=5)
    over = until_over(waiter(server, seen), (0.7, server.drop_connections), (1.4, server.stop), (3.0, server.start))
    assert over is Kind.DONE
    assert (Path(jobs.paths(seen.work, KEY).folder) / "starts").read_text().count("\n") == 1


def test_a_frozen_session_is_left_for_a_new_one(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=4)
    over = until_over(waiter(server, seen, command_s=1.0), (1.0, lambda: server.freeze(listener=False)))
    assert over is Kind.DONE


def test_no_half_lets_a_node_compress(server: sshd.Sshd, client: paramiko.SSHClient) -> None:
    """paramiko inflates whole packets before any cap is applied: 150 KB on the wire become 150 MB in memory."""
    transport = client.get_transport()
    assert transport is not None
    assert (vars(transport)["remote_compression"], vars(transport)["local_compression"]) == ("none", "none")

    async def negotiated() -> set[Any]:
        who = Credentials(key_file=str(server.key_file))
        async with await waiting.connect(NodeAddress.of(server.node()), who) as conn:
            return {conn.get_extra_info("recv_compression"), conn.get_extra_info("send_compression")}
        raise AssertionError("not connected")

    assert asyncio.run(negotiated()) == {"none"}


def test_a_key_that_the_controller_loses_is_no_lost_node(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path
) -> None:
    waiting_for = waiter(server, start(client, server, tmp_path, seconds=60), deadline_at=time.time() + 2)
    server.key_file.unlink()
    assert until_over(waiting_for) is Kind.UNABLE


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_controller_without_room_for_a_connection_is_no_lost_node(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def connect(*_: object) -> Any:
        raise OSError(number, os.strerror(number))

    async def who() -> Credentials:
        return Credentials()

    monkeypatch.setattr(waiting, "connect", connect)
    address = NodeAddress("n1", "192.0.2.1", 22, "", "")
    wait = Wait(address, KEY, "/w", "boot", deadline_at=time.time(), grace_s=0.0, poll_s=0.2)
    assert until_over(Waiter(wait, who, no_bmc)) is Kind.UNABLE


def test_a_triggerer_makes_room_for_its_connections() -> None:
    code = (
        "import resource\nfrom muster.remote.job.waiting import make_room\nmake_room()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limited(hard: int) -> list[int]:
        low = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (256, hard))
        done = subprocess.run([sys.executable, "-c", code], preexec_fn=low, capture_output=True, check=True)
        return [int(word) for word in done.stdout.split()]

    assert limited(most)[0] > 256
    assert limited(512) == [512, 512]


def test_a_reboot_is_reported(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, boot: Path) -> None:
    seen = start(client, server, tmp_path, seconds=60)

    def crash() -> None:
        server.stop()
        pid = (Path(jobs.paths(seen.work, KEY).folder) / "pid").read_text()
        os.killpg(int(pid), signal.SIGKILL)  # never /bin/kill: some versions take "-PID" for "everybody"
        boot.write_text("second\n")
        server.start()

    over = until_over(waiter(server, seen), (0.7, crash))
    assert over is Kind.REBOOTED


def test_a_process_that_vanished_is_reported(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=1, die=True)
    over = until_over(waiter(server, seen))
    assert over is Kind.VANISHED


def test_a_node_that_stays_away_is_lost_only_after_the_deadline(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path
) -> None:
    seen = start(client, server, tmp_path, seconds=60)
    deadline = time.time() + 4
    over = until_over(waiter(server, seen, deadline_at=deadline, grace_s=1.0), (0.5, server.stop))
    assert over is Kind.LOST
    assert time.time() > deadline + 1


def test_a_job_that_ignores_its_deadline_is_reported(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path
) -> None:
    seen = start(client, server, tmp_path, seconds=60)
    assert until_over(waiter(server, seen, deadline_at=time.time() + 1)) is Kind.OVERDUE


@pytest.mark.parametrize(("hours", "left_s", "kind"), [(-5, 30, Kind.DONE), (5, 1, Kind.OVERDUE)])
def test_a_deadline_is_that_of_the_records_whatever_this_machines_clock_says(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    hours: int, left_s: int, kind: Kind,
) -> None:  # fmt: skip
    seen = start(client, server, tmp_path, seconds=2 if kind is Kind.DONE else 60)
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)
    monkeypatch.setattr(store.clock, "now", lambda: now)
    over = until_over(waiter(server, seen, deadline_at=now.timestamp() + left_s))
    assert over is kind


def looked_at(
    monkeypatch: pytest.MonkeyPatch, lasts_s: float, poll_s: float, then: jobs.State, bytes_s: int = 0
) -> tuple[Kind, float, int, int]:
    """How the waiting for a job ends, after how many seconds and looks, and the bytes of its log that were read."""
    now, looks, read = 0.0, 0, 0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def poll(waiter: Waiter, _connection: object) -> waiting.Poll:
        nonlocal looks, read
        looks, read = looks + 1, waiter._log_offset
        return waiting.Poll("boot", jobs.State.RUNNING if now < lasts_s else then, "", int(now * bytes_s))

    async def connect(_waiter: Waiter) -> None: ...

    monkeypatch.setattr(waiting, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(Waiter, "_poll", poll)
    monkeypatch.setattr(Waiter, "_connect", connect)
    wait = Wait(NodeAddress("n1", "192.0.2.1", 22, "", ""), KEY, "/w", "boot", 1e11, grace_s=0.0, poll_s=poll_s)
    return until_over(Waiter(wait, Credentials, no_bmc)), now, looks, read


@pytest.mark.parametrize("poll_s", [5.0, 45.0])
@pytest.mark.parametrize("lasts_s", [1, 400, 3600, 26_600])
def test_a_long_job_is_looked_at_seldom_and_its_end_noticed_soon_for_its_length(
    monkeypatch: pytest.MonkeyPatch, lasts_s: float, poll_s: float
) -> None:
    kind, now, looks, _ = looked_at(monkeypatch, lasts_s, poll_s, jobs.State.DONE)
    assert kind is Kind.DONE
    assert now - lasts_s <= max(poll_s, min(lasts_s / waiting.SELDOM, waiting.SELDOM_S))
    assert looks <= 250 + lasts_s / waiting.SELDOM_S


def test_after_hours_it_is_looked_at_often_once_it_is_gone_or_writes_much(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, now, *_ = looked_at(monkeypatch, 7200, 5.0, jobs.State.GONE)
    assert kind is Kind.VANISHED
    assert now <= 7200 + waiting.SELDOM_S + 2 * 5.0
    *_, read = looked_at(monkeypatch, 3600, 5.0, jobs.State.DONE, bytes_s=1000)
    assert read > 3600 * 1000 - 2 * waiting.LOG_BYTES


def test_another_host_key_ends_the_waiting(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=1)
    foreign = NodeAddress.of(server.node(host_key=server.key_text("foreign")))
    assert until_over(waiter(server, seen, node=foreign)) is Kind.REFUSED


def test_a_login_that_stays_refused_is_no_lost_node(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path
) -> None:
    """A key that was taken off the node must never count as evidence against its hardware."""
    seen = start(client, server, tmp_path, seconds=60)
    (server.folder / "authorized_keys").write_text("")
    assert until_over(waiter(server, seen, deadline_at=time.time() + 1)) is Kind.REFUSED


def test_a_node_that_floods_or_babbles_does_not_fill_our_memory(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = start(client, server, tmp_path, seconds=60)
    monkeypatch.setattr(scripts, "POLL", "yes")
    over = until_over(waiter(server, seen, deadline_at=time.time() + 1))
    assert over is Kind.LOST


def test_what_the_job_prints_reaches_the_log_cleaned(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, waiting.__name__):
        until_over(waiter(server, start(client, server, tmp_path, seconds=1)))
    assert caplog.messages.count("[this-node] �[2Jworking") == 1


def test_stopping_leaves_no_process(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    seen = start(client, server, tmp_path, seconds=600, child=True)
    folder = Path(jobs.paths(seen.work, KEY).folder)
    while not (folder / "starts").exists():
        time.sleep(0.05)
    time.sleep(0.2)
    assert asyncio.run(waiter(server, seen).stop())
    group = (folder / "pid").read_text()
    left = subprocess.run(["ps", "-o", "stat=", "-g", group], capture_output=True, text=True, check=False).stdout
    assert [line for line in left.splitlines() if not line.startswith("Z")] == []


def test_a_cancellation_that_comes_with_an_answer_is_heeded(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asyncssh may lose it on Python 3.11: a triggerer that lets go of a job must not go on asking for hours."""
    waits = waiter(server, start(client, server, tmp_path, seconds=60))
    poll, polls = waits._poll, 0

    async def deaf(conn: Any) -> Any:
        nonlocal polls
        polls += 1
        answer = asyncio.ensure_future(poll(conn))
        while not answer.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(answer)
        return answer.result()

    monkeypatch.setattr(waits, "_poll", deaf)

    async def cancelled() -> None:
        task = asyncio.ensure_future(waits.until_over())
        while not polls:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)

    asyncio.run(cancelled())
    assert polls == 1


def test_of_a_job_that_prints_without_end_a_bounded_part_is_logged(
    server: sshd.Sshd,
    client: paramiko.SSHClient,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "LOG_TOTAL_BYTES", 3 * waiting.LOG_BYTES, raising=False)
    seen = start(client, server, tmp_path, lines=20_000, seconds=2)
    with caplog.at_level(logging.INFO, waiting.__name__):
        assert until_over(waiter(server, seen, poll_s=0.05)) is Kind.DONE
    printed = sum(message.count("x") for message in caplog.messages if message.startswith("[this-node] x"))
    assert waiting.LOG_BYTES < printed <= 3 * waiting.LOG_BYTES
    assert sum("stdout.log" in message for message in caplog.messages) == 1
