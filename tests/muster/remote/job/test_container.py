"""The real agent in a real podman container on a node: it measures from in there, and nothing of it outlives a stop.

Storage, settings and image are the test's own: the image is imported from the Python that runs the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from muster.remote.bmc.bmc import Bmc, Login
from muster.remote.connection.login import Credentials
from muster.remote.connection.ssh import NodeAddress
from muster.remote.job import jobs
from muster.remote.job.attempt_key import AttemptKey
from muster.remote.job.waiting import Wait, Waiter
from muster.remote.job.zipapp import AgentFile, build_agent
from muster_criteria.measured import parse_result
from muster_node.contract import EXIT_OF_END, Plan, ProbeCall
from tests.support.servers import sshd

pytestmark = [pytest.mark.slow, pytest.mark.needs_sshd, pytest.mark.needs_podman, pytest.mark.early(14)]

IMAGE = "localhost/muster-test:1"
PYTHON = Path(sys.executable).resolve()
HOW: dict[str, Any] = {"kind": "podman", "image": IMAGE, "python": str(PYTHON), "env": {"FROM_INVENTORY": "yes"}}
KEY = AttemptKey(2).job_key("node_qualification", "n1__container", "intake")
NEXT_KEY = AttemptKey(5).job_key("node_qualification", "n1__container", "intake")
LEFT_OUT = {"test", "site-packages", "__pycache__", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo"}
NPROC_OF_PODMAN = 32768  # what podman lowers its own limit to, whatever it then asks for the container


@dataclasses.dataclass(frozen=True)
class Podman:
    """A podman that shares nothing with the machine's own."""

    env: dict[str, str]

    def __call__(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(["podman", *words], env={**os.environ, **self.env}, capture_output=True, text=True)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()


def settings(folder: Path) -> dict[str, str]:
    """Write podman's settings, which keep within ``folder``; gives the environment that names them."""
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
        '[storage.options]\nignore_chown_errors = "true"\n'
    )
    # podman asks for more than a sandboxed root may give; a node's root may.
    files, processes = (resource.getrlimit(which)[1] for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    processes = NPROC_OF_PODMAN if processes == resource.RLIM_INFINITY else min(processes, NPROC_OF_PODMAN)
    # Debian's crun refuses hybrid cgroups, runc takes any.
    runtime = 'runtime = "runc"\n' if shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") else ""
    (folder / "containers.conf").write_text(
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]\n'
        f'[engine]\n{runtime}cgroup_manager = "cgroupfs"\n'
        f'events_logger = "file"\nlock_type = "file"\ntmp_dir = "{folder}/tmp"\n'
    )
    (folder / "xdg").mkdir(mode=0o700)
    return {
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "XDG_RUNTIME_DIR": str(folder / "xdg"),
    }


def image_tar(path: Path) -> None:
    """This Python with its standard library and the shared libraries they need, as a root filesystem."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    binaries = [PYTHON, *(stdlib / "lib-dynload").glob("*.so")]
    libraries_listed = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=True).stdout
    libraries = set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", libraries_listed, re.MULTILINE))

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = entry.name.rpartition("/")[2]
        return None if name in LEFT_OUT or name.startswith("config-") else entry

    with tarfile.open(path, "w", dereference=True) as tar:
        for file in [str(PYTHON), str(stdlib), *sorted(libraries)]:
            tar.add(file, filter=wanted)
        for folder in ("tmp", "proc", "sys", "dev", "etc", "run"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        marker = tarfile.TarInfo("etc/os-release")
        text = b'NAME="Muster test image"\nPRETTY_NAME="Muster test image"\n'
        marker.size, marker.mode = len(text), 0o644
        tar.addfile(marker, io.BytesIO(text))


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    # Not under tmp_path: podman refuses long paths for its sockets.
    folder = Path(tempfile.mkdtemp(prefix="muster-", dir="/tmp"))
    made = Podman(settings(folder))
    try:
        image_tar(folder / "image.tar")
        made("import", str(folder / "image.tar"), IMAGE)
        yield made
    finally:
        made("rm", "--all", "--force", "--time", "0", check=False)
        made("rmi", "--all", "--force", check=False)
        made("unshare", "rm", "-rf", str(folder / "graph"), check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server(tmp_path: Path, podman: Podman) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path / "node", podman.env) as started:
        yield started
        sshd.kill_jobs(started.home / "muster")
        for key in (KEY, NEXT_KEY):
            podman("rm", "--force", "--time", "0", f"muster-{key}", check=False)


@dataclasses.dataclass
class Bench:
    """One node whose agent runs in a container, and the steps that an operator goes through."""

    client: paramiko.SSHClient
    server: sshd.Sshd
    agent: AgentFile
    podman: Podman

    @property
    def work(self) -> str:
        return self.server.node().work_dir

    def look(self, key: str = KEY) -> jobs.Look:
        return jobs.look(self.client, self.work, key, self.agent.sha256)

    def start(self, *calls: ProbeCall, key: str = KEY, fence: int = 1) -> None:
        plan = Plan(key, "n1", "integrity", "demo", fence, 120.0, calls, 0.2, force_reason="a test on a busy machine")
        seen = self.look(key)
        jobs.send_agent(self.client, seen, self.agent.path, self.agent.sha256)
        assert jobs.start(self.client, seen, key, plan.to_json(), HOW, self.agent.sha256)

    def start_long(self) -> list[int]:
        """Start a job that loads every core for minutes; gives the processes in its container once it does."""
        self.start(ProbeCall("round_trip", 100.0, 7, {"seconds": 90.0}))
        log = Path(jobs.paths(self.work, KEY).log)
        wait_for(lambda: log.exists() and "round 1" in log.read_text(), self.why)
        inside = self.inside()
        assert len(inside) > 2, "the agent, its probe and its workers"
        return inside

    def inside(self) -> list[int]:
        """The host's processes that run in a job's container, by what the inventory gave it; zombies are none."""
        return [pid for pid in pids() if b"FROM_INVENTORY=yes" in environment(pid)]

    def all(self) -> list[str]:
        """Everything that belongs to a job in any way: wrapper, podman, its monitor, what runs inside."""
        words = (b"FROM_INVENTORY=yes", f"MUSTER_WORK={self.work}".encode())
        return [
            f"{pid} {command(pid)}"
            for pid in pids()
            if KEY in command(pid) or any(word in environment(pid) for word in words)
        ]

    def containers(self) -> str:
        return self.podman("ps", "--all", "--format", "{{.Names}} {{.Status}}")

    def why(self) -> str:
        return f"{self.look().state}: {jobs.log_tail(self.client, self.work, KEY)}"


@pytest.fixture
def bench(
    client: paramiko.SSHClient, server: sshd.Sshd, podman: Podman, tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    return Bench(client, server, build_agent(tmp_path_factory.mktemp("agents")), podman)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def wait_for(what: Callable[[], object], why: Callable[[], str], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.1)


def test_the_agent_measures_the_node_from_within_its_container(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start(ProbeCall("inventory", 60.0, 7), ProbeCall("round_trip", 60.0, 7, {"mib": 0.1, "rounds": 1}))
    wait_for(lambda: bench.look().state is jobs.State.DONE, bench.why)
    assert bench.look().exit_code == 0, bench.why()
    collected = jobs.collect(client, bench.work, KEY)
    assert collected.telemetry
    result = parse_result(collected.result or b"")
    assert (result.end, result.job_id, result.agent_sha256) == ("completed", KEY, bench.agent.sha256)
    assert [probe.status for probe in result.probes] == ["completed", "completed"]
    texts = {row.metric: row.text for row in result.measurements if row.text is not None}
    assert texts["kernel"] == os.uname().release
    assert texts["boot_id"] == bench.look().boot_id
    mismatches = [row.value for row in result.measurements if row.metric == "round_trip_mismatches"]
    assert mismatches
    assert set(mismatches) == {0}
    assert texts["os"] == "Muster test image", "it ran in the image, not on the host"
    jobs.remove(client, bench.work, KEY)
    wait_for(lambda: bench.containers() == "", bench.containers)
    assert bench.all() == []


def test_stopping_ends_the_container_and_keeps_the_partial_result(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start_long()
    assert jobs.stop(client, bench.work, KEY)
    assert bench.look().exit_code == EXIT_OF_END["terminated"], bench.why()
    assert parse_result(jobs.collect(client, bench.work, KEY).result or b"").end == "terminated"
    assert bench.containers() == ""
    wait_for(lambda: bench.all() == [], lambda: "\n".join(bench.all()), 3)


def test_killing_the_task_reaches_processes_that_do_not_listen(bench: Bench, server: sshd.Sshd) -> None:
    """Frozen processes heed no SIGTERM, and podman's own end does not end its container."""
    seen = bench.look()
    for pid in bench.start_long():
        os.kill(pid, signal.SIGSTOP)
    address = NodeAddress.of(server.node())
    wait = Wait(address, KEY, bench.work, seen.boot_id, time.time() + 60, grace_s=0.0, poll_s=0.2)

    async def who() -> Credentials:
        return Credentials(key_file=str(server.key_file))

    async def no_bmc(_bmc: Bmc) -> Login:
        raise AssertionError

    assert asyncio.run(Waiter(wait, who, no_bmc).stop())
    assert bench.containers() == ""
    wait_for(lambda: bench.all() == [], lambda: "\n".join(bench.all()), 3)


def test_a_container_that_lost_its_client_is_found_by_the_next_job(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start_long()
    os.killpg(int((Path(jobs.paths(bench.work, KEY).folder) / "pid").read_text()), signal.SIGKILL)
    wait_for(lambda: bench.look().state is jobs.State.GONE, bench.why)
    assert bench.inside(), "the container goes on by itself"
    jobs.stop_others(client, bench.work, Plan(NEXT_KEY, "n1", "intake", "demo", 1, 60.0, ()), {})
    assert bench.containers() == ""
    wait_for(lambda: bench.all() == [], lambda: "\n".join(bench.all()), 3)


def test_a_container_that_cannot_be_removed_is_not_called_stopped(bench: Bench, client: paramiko.SSHClient) -> None:
    """A runtime that fails (its storage is full, say) leaves the load on the node; the caller gets the error."""
    bench.start_long()
    storage = Path(bench.podman.env["CONTAINERS_STORAGE_CONF"])
    text = storage.read_text()
    try:
        storage.write_text("not a setting\n")
        assert not jobs.stop(client, bench.work, KEY)
    finally:
        storage.write_text(text)
    assert jobs.stop(client, bench.work, KEY)
    assert bench.inside() == []
