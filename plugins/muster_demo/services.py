"""Long-running child processes of the demo, each in a session of its own with a log file, ended together."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
import random
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import psutil

from muster_demo.watchdog import die_with_parent, end_all


class ServiceFailed(Exception):
    """A service ended or did not become ready; the message names it and its log."""


@dataclasses.dataclass
class Service:
    """A running child process and where its output goes."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    log: pathlib.Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """The process id; also its session and process group."""
        return self.process.pid

    def ended(self) -> bool:
        """Whether the process is gone."""
        return self.process.poll() is not None


class Supervisor:
    """Starts services, and ends them with all that they started."""

    def __init__(self, logs: pathlib.Path) -> None:
        self.logs = logs
        self.services: dict[str, Service] = {}
        self._sessions: dict[str, list[int]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Service:
        """Start a service; its output is appended to ``logs/NAME.log``. Raises ValueError if the name is in use."""
        if name in self.services and not self.services[name].ended():
            raise ValueError(f"a service called {name} is running already")
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        service = Service(name, tuple(command), dict(environment), log, process)
        self.services[name] = service
        self._sessions.setdefault(name, []).append(service.pid)
        return service

    def stop(self, names: Sequence[str] | None = None, *, patience_s: float = 5.0) -> None:
        """End the named services, or all, with their descendants; returns when they are gone.

        This includes what a killed service left: it is still in that service's session.
        """
        chosen = {name: self.services.pop(name) for name in list(self.services if names is None else names)}
        alive = [psutil.Process(service.pid) for service in chosen.values() if not service.ended()]
        end_all(alive, patience_s=patience_s)
        for service in chosen.values():
            service.process.wait(timeout=10)
        end_all(members({session for name in chosen for session in self._sessions.pop(name, [])}), patience_s=0)

    def check(self) -> None:
        """Raise ServiceFailed if a service has ended."""
        for service in self.services.values():
            if service.ended():
                raise ServiceFailed(
                    f"{service.name} ended with status {service.process.returncode}; its last lines:\n"
                    f"{tail(service.log)}(log: {service.log})"
                )

    def wait_until(self, what: str, ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until ``ready()`` is true. Raises ServiceFailed if a service ends or the time is up."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise ServiceFailed(f"{what} did not come within {timeout_s:.0f} s; the logs are in {self.logs}")
            time.sleep(0.2)


def members(sessions: Collection[int]) -> list[psutil.Process]:
    """The processes of sessions whose leaders are gone."""
    found = []
    for pid in psutil.pids():
        try:
            if pid not in sessions and os.getsid(pid) in sessions:
                found.append(psutil.Process(pid))
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    return found


def tail(path: pathlib.Path, lines: int = 5) -> str:
    """The last lines of a text file, for an error message."""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - 4096))
        return "".join(line + "\n" for line in log.read().decode(errors="replace").splitlines()[-lines:])


# Below the range from which Linux takes the ports of outgoing connections (32768 on): one of those could take the port
# before the service that it was chosen for listens on it.
SERVICE_PORTS = range(20_000, 32_000)

# A service takes seconds until it listens. An abstract socket named after its port keeps other processes from choosing
# the port meanwhile, and ends with this process.
_reserved: collections.deque[socket.socket] = collections.deque()
_RESERVED_MAX = 64


def free_port() -> int:
    """A random TCP port of the loopback interface that is free now. Raises ServiceFailed as ``free_ports``."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """As many different TCP ports. Raises ServiceFailed if so many of 100 more are not free."""
    found: list[int] = []
    for port in random.SystemRandom().sample(SERVICE_PORTS, count + 100):
        reserved = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                reserved.bind(f"\0muster-port-{port}")
            except OSError:
                reserved.close()
                continue
        _reserved.append(reserved)
        if len(_reserved) > _RESERVED_MAX:
            _reserved.popleft().close()
        found.append(port)
        if len(found) == count:
            return found
    raise ServiceFailed(f"no {count} free ports between {SERVICE_PORTS.start} and {SERVICE_PORTS.stop}")


def port_is_open(port: int) -> bool:
    """Whether something listens on a port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def base_environment(mark: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for children, with the mark and without the user's own Airflow and Muster settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith(("AIRFLOW", "MUSTER_", "_AIRFLOW"))
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **mark}
