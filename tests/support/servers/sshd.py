"""A real OpenSSH server on loopback, run as the current user, with a host key and a login key of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from muster_demo import watchdog
from muster_demo.hosts import make_key
from muster_demo.services import free_port
from tests.support.plugins import run_end

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
CONNECTION = "AIRFLOW_CONN_MUSTER_SSH"


def connection(key_file: Path | str = "") -> str:
    """Airflow's SSH connection with that key, else one that opens nothing, as ``CONNECTION`` has it."""
    extra = {"key_file": str(key_file)} if key_file else {"private_key": _any_key()}
    return json.dumps({"conn_type": "ssh", "login": "muster", "extra": extra})


@functools.cache
def _any_key() -> str:
    made = Ed25519PrivateKey.generate()
    return made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


@dataclasses.dataclass(frozen=True)
class Node:
    """What our code needs to know of a node; shaped like ``Node``."""

    name: str
    host: str
    port: int
    user: str | None
    host_key: str
    work_dir: str = ""


class Sshd:
    """One server. ``freeze`` and ``stop`` take it off the network, ``start`` brings it back on the same port."""

    def __init__(self, folder: Path, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.env = env or {}
        self.key_file = folder / "login"
        self.log_file = folder / "sshd.log"
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("host", "login", "foreign"):
            (folder / f"{name}.pub").write_text(make_key(folder / name) + "\n")
        shutil.copy(folder / "login.pub", folder / "authorized_keys")
        self.port = free_port()

    def key_text(self, which: str = "host") -> str:
        return (self.folder / f"{which}.pub").read_text().strip()

    def node(self, name: str = "this-node", host_key: str = "") -> Node:
        return Node(
            name=name,
            host="127.0.0.1",
            port=self.port,
            user=getpass.getuser(),
            host_key=host_key or self.key_text(),
            work_dir=str(self.home / "muster"),
        )

    def start(self) -> None:
        assert SSHD
        mark = {run_end.MARK: os.environ.get(run_end.MARK, "")}
        environment = {"HOME": str(self.home), **mark, **self.env}
        set_env = "".join(f' "{name}={value}"' for name, value in environment.items())
        config = self.folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.folder}/host\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nPidFile {self.folder}/sshd.pid\n"
            "UsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"PermitRootLogin prohibit-password\nMaxStartups 100\nSetEnv{set_env}\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        command = [SSHD, "-D", "-E", str(self.log_file), "-f", str(config)]
        self._process = subprocess.Popen(command, preexec_fn=watchdog.die_with_parent)
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
                return
            if self._process.poll() is not None:
                raise RuntimeError(f"sshd ended: {self.log_file.read_text()}")
            time.sleep(0.05)
        raise RuntimeError(f"sshd does not answer: {self.log_file.read_text()}")

    def sessions(self) -> list[int]:
        """The processes that serve open connections."""
        if self._process is None:
            return []
        found = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def drop_connections(self) -> None:
        """Break every open connection, as a network fault would; the server goes on."""
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                _signal_tree(pid, signal.SIGKILL)

    def freeze(self, *, listener: bool = True) -> None:
        """Stop (SIGSTOP) the processes of all open connections, and the listener: TCP stays up, nothing responds."""
        if self._process is None:
            return
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                _signal_tree(pid, signal.SIGSTOP)
        if listener:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo ``freeze``."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                _signal_tree(pid, signal.SIGCONT)

    def stop(self) -> None:
        """Take the node off the network; what runs on it goes on."""
        if self._process is None:
            return
        self.thaw()
        sessions = self.sessions()
        self._process.terminate()
        self._process.wait(10)
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                _signal_tree(pid, signal.SIGKILL)
        self._process = None


def kill_jobs(work: Path) -> None:
    """Kill what is left of the jobs under a work folder, each by the process group that it wrote down itself."""
    for file in work.glob("jobs/*/pid"):
        text = file.read_text()
        with contextlib.suppress(OSError):
            if int(text) > 1 and file.parent.name in Path(f"/proc/{text}/cmdline").read_text():
                os.killpg(int(text), signal.SIGKILL)


def _signal_tree(pid: int, number: int) -> None:
    """Signal a session process and its privilege-separated child, but not the jobs detached from it."""
    children = subprocess.run(["pgrep", "-P", str(pid), "sshd"], capture_output=True, text=True, check=False)
    os.kill(pid, number)
    for child in children.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), number)


@contextlib.contextmanager
def running(folder: Path, env: dict[str, str] | None = None) -> Iterator[Sshd]:
    """A started server, stopped at the end."""
    server = Sshd(folder, env)
    server.start()
    try:
        yield server
    finally:
        server.stop()
