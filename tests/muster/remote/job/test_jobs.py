"""Jobs against a real OpenSSH server: started once, found again, collected whole, stopped to the last process."""

from __future__ import annotations

import dataclasses
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import paramiko
import pytest

from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job import jobs, launch
from muster.remote.job.attempt_key import AttemptKey
from tests.support import standin
from tests.support.servers import sshd

pytestmark = pytest.mark.needs_sshd

REAL_LAST = shutil.which("last")
KEY = AttemptKey(2).job_key("node_qualification", "n1__new", "burn_in")


@dataclasses.dataclass
class Bench:
    """One node with the stand-in sent, and the steps that an operator goes through."""

    client: paramiko.SSHClient
    work: str
    agent: Path
    sha256: str

    def look(self, key: str = KEY) -> jobs.Look:
        return jobs.look(self.client, self.work, key, self.sha256)

    def start(
        self, key: str = KEY, launch_as: dict[str, Any] | None = None, step: Sequence[str] = (), **behave: object
    ) -> bool:
        seen = self.look(key)
        jobs.send_agent(self.client, seen, self.agent, self.sha256)
        return jobs.start(self.client, seen, key, standin.plan(key, **behave), launch_as or {}, self.sha256, step)

    def until(self, state: jobs.State, key: str = KEY, seconds: float = 15) -> jobs.Look:
        end = time.monotonic() + seconds
        while (seen := self.look(key)).state is not state:
            assert time.monotonic() < end, f"still {seen.state}"
            time.sleep(0.1)
        return seen

    def folder(self, key: str = KEY) -> Path:
        return Path(jobs.paths(self.work, key).folder)


@pytest.fixture
def bench(client: paramiko.SSHClient, server: sshd.Sshd, tmp_path: Path) -> Iterator[Bench]:
    agent, sha256 = standin.write(tmp_path / "cache")
    made = Bench(client, server.node().work_dir, agent, sha256)
    yield made
    sshd.kill_jobs(Path(made.work))


def test_a_job_from_first_look_to_tidied_up(bench: Bench, client: paramiko.SSHClient) -> None:
    first = bench.look()
    assert (first.state, first.agent, first.exit_code) == (jobs.State.ABSENT, "absent", None)
    assert first.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert jobs.send_agent(client, first, bench.agent, bench.sha256)
    assert not jobs.send_agent(client, bench.look(), bench.agent, bench.sha256)
    assert bench.start()
    assert bench.until(jobs.State.DONE).exit_code == 0
    got = jobs.collect(client, bench.work, KEY)
    assert got.result is not None
    assert f'"work": "{bench.work}"'.encode() in got.result
    assert got.telemetry is not None
    assert got.notes == ()
    assert jobs.log_tail(client, bench.work, KEY) == "�[2Jworking\n"
    jobs.remove(client, bench.work, KEY)
    assert not bench.folder().exists()
    assert bench.look().state is jobs.State.ABSENT


@pytest.mark.parametrize("noise", ["Welcome to n1\n", "no newline"])
def test_a_login_shell_that_prints_is_reported_before_anything_is_read(
    client: paramiko.SSHClient, monkeypatch: pytest.MonkeyPatch, noise: str
) -> None:
    real = ssh.run

    def noisy(*args: Any, **named: Any) -> ssh.Completed:
        done = real(*args, **named)
        return dataclasses.replace(done, out=noise.encode() + done.out)

    monkeypatch.setattr(ssh, "run", noisy)
    with pytest.raises(ssh.RemoteError) as raised:
        jobs.look(client, "muster", KEY, "")
    assert noise.strip() in str(raised.value)
    assert ".bashrc" in str(raised.value)


def test_a_damaged_agent_is_sent_again(bench: Bench, client: paramiko.SSHClient) -> None:
    jobs.send_agent(client, bench.look(), bench.agent, bench.sha256)
    path = Path(jobs.agent_path(bench.work, bench.sha256))
    path.chmod(0o700)
    path.write_bytes(b"something else")
    assert bench.look().agent == "bad"
    assert jobs.send_agent(client, bench.look(), bench.agent, bench.sha256)
    assert bench.look().agent == "ok"


def test_work_outlives_the_connection_and_is_not_started_twice(
    bench: Bench, server: sshd.Sshd, who: Credentials
) -> None:
    """A retry of the task must never give the node a second burn-in."""
    assert bench.start(seconds=2)
    server.drop_connections()
    with ssh.connect(server.node(), who) as again:
        bench.client = again
        assert bench.look().state is jobs.State.RUNNING
        assert not bench.start(seconds=2)
        assert bench.until(jobs.State.DONE).exit_code == 0
        assert not bench.start(seconds=2)
        assert (bench.folder() / "starts").read_text().count("\n") == 1


def test_stopping_keeps_the_partial_result_and_leaves_no_process(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start(seconds=600, child=True)
    bench.until(jobs.State.RUNNING)
    wait_for(bench.folder() / "starts")
    assert jobs.stop(client, bench.work, KEY)
    seen = bench.look()
    assert (seen.state, seen.exit_code) == (jobs.State.DONE, 6)
    assert b'"end": "terminated"' in (jobs.collect(client, bench.work, KEY).result or b"")
    group = (bench.folder() / "pid").read_text()
    alive = subprocess.run(["ps", "-o", "stat=,args=", "-g", group], capture_output=True, text=True, check=False).stdout
    assert [line for line in alive.splitlines() if not line.startswith("Z")] == []


def test_stopping_a_job_that_is_over_does_nothing(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start()
    bench.until(jobs.State.DONE)
    assert jobs.stop(client, bench.work, KEY)
    assert bench.look().exit_code == 0


def test_a_foreign_process_under_a_recycled_pid_is_left_alone(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start(seconds=600, die=False)
    bench.until(jobs.State.RUNNING)
    jobs.stop(client, bench.work, KEY)
    foreign = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        (bench.folder() / "exit_code").unlink()
        (bench.folder() / "pid").write_text(str(foreign.pid))
        assert bench.look().state is jobs.State.GONE
        jobs.stop(client, bench.work, KEY)
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_death_without_an_exit_status_is_seen(bench: Bench) -> None:
    bench.start(die=True)
    assert bench.until(jobs.State.GONE).exit_code is None


def test_a_reboot_is_distinguished_from_a_death(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("first\n")
    agent, sha256 = standin.write(tmp_path / "cache")
    with sshd.running(tmp_path / "node", {"MUSTER_BOOT_ID_FILE": str(boot)}) as server:
        who = Credentials(key_file=str(server.key_file))
        with ssh.connect(server.node(), who) as client:
            bench = Bench(client, server.node().work_dir, agent, sha256)
            bench.start(die=True)
            bench.until(jobs.State.GONE)
            boot.write_text("second\n")
            assert bench.look().state is jobs.State.REBOOTED


BOOT, SHUTDOWN = 2, 1
"""Types of the records of wtmp (utmp(5); the second is RUN_LVL)."""
RECORD = struct.Struct("<hxxi32s4s32s256shhiii16s20s")
LOGGED = {
    "b": "systemd 257 running in system mode (+PAM +AUDIT)\nReached target basic.target - Basic System.\n"
    "Linux version 6.12.48+deb13-amd64 (debian-kernel@lists.debian.org)\n",
    "s": "Reached target shutdown.target - System Shutdown.\nThe system will reboot now!\n",
}
"""What the journal says of a boot and of an orderly shutdown, the latest first."""


@pytest.mark.skipif(REAL_LAST is None, reason="there is no last(1)")
@pytest.mark.parametrize(
    ("since", "message", "orderly"),
    [
        ("sb", "", True), ("sbsb", "", True), ("b", "", False), ("sbb", "", False), ("bsb", "", False),
        ("s", "", False), ("", "", False),
        ("sb", "thermal thermal_zone0: critical temperature reached, shutting down", False),
        ("sb", "thermal thermal_zone3: acpitz: critical temperature reached", False),
        ("sb", "reboot: HARDWARE PROTECTION shutdown (Temperature too high)", False),
        ("sb", "CPU0: Core temperature above threshold, cpu clock throttled (total events = 1)", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("source", "ended"), [("wtmp", True), ("journal", False)])
def test_a_machine_that_was_shut_down_before_each_boot_did_not_crash(
    tmp_path: Path, since: str, message: str, orderly: bool, source: str, ended: bool
) -> None:
    boot, tools, now = tmp_path / "boot_id", tmp_path / "tools", int(time.time())
    boot.write_text("first\n")
    records = [("b", now - 600), *((each, now + 60 * number) for number, each in enumerate(since, 1))]
    (tmp_path / "wtmp").write_bytes(b"".join(
        RECORD.pack(BOOT if each == "b" else SHUTDOWN, 0, b"~", b"~~", b"reboot" if each == "b" else b"shutdown",
                    b"6.8.0", 0, 0, 0, at, 0, b"", b"")
        for each, at in records
    ))  # fmt: skip
    tools.mkdir()
    last = f'exec {REAL_LAST} -f {tmp_path}/wtmp "$@"' if source == "wtmp" else "exit 127"
    (tools / "last").write_text(f"#!/bin/sh\n{last}\n")
    logged = "".join(LOGGED[each] for each in reversed(since)) if source == "journal" else ""
    (tools / "journalctl").write_text(f"#!/bin/sh\ncat <<'END'\n{logged}nvidia: loaded\n{message}\nEND\n")
    (tools / "date").write_text("#!/bin/sh\necho 2037-01-01 00:00:00\n")  # as if -r meant now (uutils 0.2)
    for tool in ("last", "journalctl", "date"):
        (tools / tool).chmod(0o755)
    agent, sha256 = standin.write(tmp_path / "cache")
    environment = {"MUSTER_BOOT_ID_FILE": str(boot), "PATH": f"{tools}:{os.environ['PATH']}"}
    with (
        sshd.running(tmp_path / "node", environment) as server,
        ssh.connect(server.node(), Credentials(key_file=str(server.key_file))) as client,
    ):
        bench = Bench(client, server.node().work_dir, agent, sha256)
        bench.start(**({} if ended else {"die": True}))
        assert not bench.until(jobs.State.DONE if ended else jobs.State.GONE).orderly
        boot.write_text("second\n")
        assert bench.look().orderly is orderly


def test_a_job_that_ended_before_the_reboot_is_done(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("first\n")
    agent, sha256 = standin.write(tmp_path / "cache")
    with sshd.running(tmp_path / "node", {"MUSTER_BOOT_ID_FILE": str(boot)}) as server:
        who = Credentials(key_file=str(server.key_file))
        with ssh.connect(server.node(), who) as client:
            bench = Bench(client, server.node().work_dir, agent, sha256)
            bench.start()
            bench.until(jobs.State.DONE)
            boot.write_text("second\n")
            assert bench.look().state is jobs.State.DONE


def test_a_result_too_large_is_left_on_the_node(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start(padding=6 * 1024 * 1024)
    bench.until(jobs.State.DONE)
    got = jobs.collect(client, bench.work, KEY)
    assert got.result is None
    assert "larger than the 5242880 bytes" in got.notes[0]


def test_telemetry_that_is_not_what_the_result_names_is_dropped(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start(tamper="more")
    bench.until(jobs.State.DONE)
    got = jobs.collect(client, bench.work, KEY)
    assert got.result is not None
    assert got.telemetry is None
    assert "does not have the hash" in got.notes[0]
    small = jobs.collect(client, bench.work, KEY, telemetry_max=3)
    assert "larger than the 3 bytes" in small.notes[0]


@pytest.mark.parametrize("key", ["", "../../etc", "a" * 7, "A" * 24, "0" * 24 + "\n"])
def test_no_key_leads_out_of_the_work_folder(key: str) -> None:
    with pytest.raises(ssh.RemoteError):
        jobs.paths("/work", key)


@pytest.mark.parametrize("work", ["", "relative", "/a/../etc", "/a\nb"])
def test_no_work_folder_leads_elsewhere(work: str) -> None:
    with pytest.raises(ssh.RemoteError):
        jobs.paths(work, KEY)


@pytest.mark.parametrize("text", ["", "-1", "256", "9999", "1 2", "٣", "0x1"])
def test_an_exit_status_is_a_small_number_or_nothing(text: str) -> None:
    assert jobs.exit_status(text) is None


def test_a_launch_that_cannot_work_is_reported_before_anything_is_sent(bench: Bench) -> None:
    with pytest.raises(launch.BadLaunch):
        bench.start(launch_as={"kind": "podman"})


def test_an_interpreter_that_is_missing_is_an_exit_status(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start(launch_as={"python": "/nowhere/python3"})
    assert bench.until(jobs.State.DONE).exit_code == 127
    assert "/nowhere/python3" in jobs.log_tail(client, bench.work, KEY)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.2)  # the stand-in sets its signal handler right after


SLOW = ("sh", "-c", 'sleep 2; exec "$@"', "slow")
"""A stand-in for ``srun``, which waits for its slurmctld (22.05: for minutes) before the job's own shell begins."""


def test_a_job_whose_start_is_delayed_runs(bench: Bench) -> None:
    bench.start(step=SLOW)
    assert bench.look().state is jobs.State.RUNNING
    assert bench.until(jobs.State.DONE).exit_code == 0


def test_a_job_whose_start_is_delayed_can_be_stopped(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start(step=SLOW, seconds=600)
    assert jobs.stop(client, bench.work, KEY)
    time.sleep(3)
    assert bench.look().state is jobs.State.GONE
    assert not (bench.folder() / "starts").exists()
