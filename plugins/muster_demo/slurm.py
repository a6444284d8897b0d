"""A real Slurm on this machine: one slurmctld, several slurmd on ports of their own, and a munged with its own key.

Nothing of it is installed as a service: all files lie in one folder, and every process ends with its supervisor.
"""

from __future__ import annotations

import dataclasses
import getpass
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from muster_demo.services import Supervisor, free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd")
USERS, TESTS = "users", "muster"
"""The partitions: of users' jobs, and of tests, which every user's job preempts."""

STARTS_WITHIN_S = 60.0
COMMAND_S = 30.0
SOCKET_PATH_MAX = 107
"""Bytes of the path of a socket (unix(7)). The longest is a job step's, in the folder of its node."""

_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin"
_GONE = ("UNKNOWN", "NOT_RESPONDING", "DOWN", "*")

_CONF = """
ClusterName=muster
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=1,sched_min_interval=0,bf_interval=2
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
PartitionName={users} Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName={tests} Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL
"""


class SlurmFailed(Exception):
    """A command of Slurm failed; the message holds the command and what it wrote."""


@dataclasses.dataclass
class Slurm:
    """A cluster of the nodes ``names``; ``environment``: of its processes and of the commands given to it.

    ``further``: more lines for slurm.conf.
    """

    supervisor: Supervisor
    folder: Path
    names: tuple[str, ...]
    environment: Mapping[str, str]
    further: str = ""

    @property
    def conf(self) -> Path:
        """Its slurm.conf."""
        return self.folder / "slurm.conf"

    @property
    def env(self) -> dict[str, str]:
        """The environment in which Slurm's commands reach this cluster."""
        path = f"{self.environment.get('PATH', '')}:{_PATH}"
        return {**self.environment, "SLURM_CONF": str(self.conf), "PATH": path}

    def call(self, *command: str, check: bool = True) -> str:
        """Returns what a command of Slurm writes to standard output. Raises SlurmFailed if ``check`` and it fails."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        if check and done.returncode != 0:
            raise SlurmFailed(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def update(self, node: str, *changes: str) -> None:
        """``scontrol update`` of a node, as another administrator does it."""
        self.call("scontrol", "update", f"NodeName={node}", *changes)

    def show(self, node: str) -> str:
        """Returns ``scontrol show node`` as one line."""
        return self.call("scontrol", "-o", "show", "node", node)

    def start(self) -> None:
        """Start munged, slurmctld and the nodes, and wait until every node answers. Raises ServiceFailed."""
        for sub in ("state", *self.names):
            (self.folder / sub).mkdir(parents=True)
        self.conf.write_text(self._conf_text())
        self._start_munged()
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        self.await_nodes(self.names)

    def _conf_text(self) -> str:
        here = "NodeHostname=localhost NodeAddr=127.0.0.1"
        own, *ports = free_ports(1 + len(self.names))
        named = zip(self.names, ports, strict=True)
        nodes = "\n".join(f"NodeName={name} {here} Port={port} CPUs=1" for name, port in named)
        filled = _CONF.format(
            host=os.uname().nodename, port=own, user=getpass.getuser(), folder=self.folder, nodes=nodes,
            users=USERS, tests=TESTS,
        )  # fmt: skip
        return filled + self.further

    def _start_munged(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{end}" for option, end in files.items()]
        # Others may write to a folder above ours, such as /tmp, which munged refuses without --force.
        self._start("munged", "munged", "--foreground", "--force", *options)
        self._until("munged", (self.folder / "munge.socket").exists)

    def start_controller(self, *options: str) -> None:
        """``options``: "-c" forgets the saved state, as after a lost disk."""
        self._start("slurmctld", "slurmctld", "-D", "-i", *options)
        self._until("slurmctld", lambda: "UP" in self.call("scontrol", "ping", check=False))

    def start_node(self, name: str) -> None:
        """Start a node's slurmd; does not wait."""
        self._start(name, "slurmd", "-D", "-N", name)

    def await_nodes(self, names: Sequence[str]) -> None:
        """Wait until the nodes answer, drained or not. Raises ServiceFailed."""
        self._until("Slurm's nodes", lambda: not any(word in self._state(name) for name in names for word in _GONE))

    def _state(self, name: str) -> str:
        return self.show(name).split("State=")[1].split()[0]

    def stop(self, *names: str) -> None:
        """End "slurmctld", "munged" or nodes by name; without names, all."""
        chosen = map(_service, names or (*self.names, "slurmctld", "munged"))
        self.supervisor.stop([name for name in chosen if name in self.supervisor.services])

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """The process of "slurmctld", "munged" or a node."""
        return self.supervisor.services[_service(name)].process

    def _start(self, name: str, program: str, *options: str) -> None:
        path = shutil.which(program, path=self.env["PATH"])
        if path is None:
            raise SlurmFailed(f"there is no {program} on this machine: apt-get install slurm-wlm munge")
        self.supervisor.start(_service(name), [path, *options], self.env)

    def _until(self, what: str, ready: Callable[[], bool]) -> None:
        self.supervisor.wait_until(what, ready, STARTS_WITHIN_S)


def missing(folder: Path, names: Sequence[str] = ()) -> str:
    """Returns why no Slurm of nodes ``names`` can run in ``folder`` on this machine, "" if one can."""
    path = f"{os.environ.get('PATH', '')}:{_PATH}"
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if absent:
        return f"there is no {', '.join(absent)} on this machine (apt-get install slurm-wlm munge)"
    longest = max((*names, "munge"), key=len)
    if len(os.fsencode(folder / longest / f"{longest}_99999.4294967291")) > SOCKET_PATH_MAX:
        return f"{folder} is too long a path for the sockets of slurmd"
    return ""


def _service(name: str) -> str:
    return f"slurm-{name}"
