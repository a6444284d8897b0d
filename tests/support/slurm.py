"""A real Slurm on this machine: one slurmctld, several slurmd on ports of their own, and a munged with its own key.

Nothing of it is installed as a service: all files lie in one folder, and every process ends with the test run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from muster_demo.services import free_port
from tests.support import run_end

SBIN = "/usr/sbin:/usr/local/sbin:/usr/bin"
STARTS_WITHIN_S = 60.0

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=1,sched_min_interval=0
ReturnToService=1
SlurmctldTimeout=10
SlurmdTimeout=30
MessageTimeout=5
InactiveLimit=0
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
MpiDefault=none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
{nodes}
PartitionName=users Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=muster Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL
"""


@dataclasses.dataclass
class Slurm:
    """A cluster of nodes ``n0``, ``n1``, …; ``conf`` is its slurm.conf."""

    folder: Path
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        self.conf = self.folder / "slurm.conf"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def call(self, *command: str, check: bool = True) -> str:
        """Returns what a command of Slurm writes to standard output."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0 or not check, f"{command}: {done.stderr or done.stdout}"
        return done.stdout

    def update(self, node: str, *changes: str) -> None:
        """``scontrol update`` of a node, as another administrator does it."""
        self.call("scontrol", "update", f"NodeName={node}", *changes)

    def show(self, node: str) -> str:
        return self.call("scontrol", "-o", "show", "node", node)

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:{SBIN}"}

    def start(self) -> None:
        """Start munged, slurmctld and the nodes, and wait until every node is idle."""
        self.start_munged()
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        self.await_nodes(self.names)

    def start_munged(self) -> None:
        key = self.folder / "munge.key"
        if not key.exists():
            key.write_bytes(secrets.token_bytes(128))
            key.chmod(0o600)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{end}" for option, end in files.items()]
        # The folder may be below /tmp, which munged refuses without --force.
        self._start("munged", "munged", "--foreground", "--force", *options)
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged does not answer")

    def start_controller(self, *options: str) -> None:
        """``options``: "-c" forgets the saved state, as after a lost disk."""
        self._start("slurmctld", "slurmctld", "-D", "-i", *options)
        self._until(lambda: "UP" in self.call("scontrol", "ping", check=False), "slurmctld does not answer")

    def start_node(self, name: str) -> None:
        self._start(name, "slurmd", "-D", "-N", name)

    def await_nodes(self, names: Sequence[str]) -> None:
        """Wait until the nodes respond, whatever else their state is."""
        gone = ("UNKNOWN", "NOT_RESPONDING", "DOWN", "*")
        self._until(
            lambda: not any(word in self.show(name).split("State=")[1].split()[0] for name in names for word in gone),
            "the nodes do not answer",
        )

    def stop(self, what: str = "") -> None:
        """End one process ("slurmctld", "munged", a node's name), or all."""
        for name in [what] if what else list(self._running)[::-1]:
            process = self._running.pop(name)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def process(self, what: str) -> subprocess.Popen[bytes]:
        return self._running[what]

    def _start(self, name: str, program: str, *options: str) -> None:
        path = shutil.which(program, path=SBIN)
        assert path, "tests.support.services_needed should have refused the run"
        self._running[name] = subprocess.Popen(
            [path, *options],
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / f"{name}.err").open("ab"),
            preexec_fn=run_end.die_with_parent,
        )

    def _until(self, true: object, complaint: str) -> None:
        assert callable(true)
        end = time.monotonic() + STARTS_WITHIN_S
        while not true():
            dead = [name for name, process in self._running.items() if process.poll() is not None]
            if dead or time.monotonic() > end:
                logs = "\n".join(file.read_text()[-500:] for file in sorted(self.folder.glob("*.err")))
                raise RuntimeError(f"{complaint}; ended: {dead}\n{logs}")
            time.sleep(0.1)


@contextlib.contextmanager
def running(nodes: int = 4, further: str = "") -> Iterator[Slurm]:
    """A started cluster, with ``further`` lines in slurm.conf, ended and removed with the block.

    A socket's path is short, so its folder is below /tmp.
    """
    folder = Path(tempfile.mkdtemp(prefix="muster-slurm-"))
    names = tuple(f"n{number}" for number in range(nodes))
    lines = [f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs=1" for name in names]
    text = CONF.format(
        folder=folder, host=os.uname().nodename, port=free_port(), user=getpass.getuser(), nodes="\n".join(lines)
    )
    cluster = Slurm(folder, names)
    cluster.conf.write_text(text + further)
    for sub in ("state", *(f"spool-{name}" for name in names)):
        (folder / sub).mkdir()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        end_jobs(cluster.conf)
        shutil.rmtree(folder, ignore_errors=True)


def end_jobs(conf: Path) -> None:
    """End the processes of the cluster's jobs: they outlive slurmd by design; each one's slurmstepd ends with it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == str(conf):
                process.kill()
