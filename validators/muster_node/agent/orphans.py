"""Processes that must not outlive the job: finding them, ending them, and the watchdog that does so if the agent dies.

Three mechanisms, because each misses some processes. The kernel kills a probe's process when the agent dies
(parent-death signal), but not what that process started. The agent is its descendants' subreaper, so orphans become its
children, but not after it has died. Every process carries the run's marker in its environment, which the watchdog looks
for when the agent is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from typing import Callable

from muster_node import privilege, processes
from muster_node.processes import Process

ASKING = ("dcgmi",)
"""Programs that only ask a service of the node to work, and on SIGTERM ask it to stop; if killed, they leave it
working. One that takes longer than the limit is left running so that it can still do that."""

END_WAIT_S = 1.0
"""Seconds that processes left by a dead agent get to end."""

MARKER = "MUSTER_RUN"
"""Environment variable that every process of a job inherits; its value is unique to the run."""


def descendants(of: int, without: Callable[[Process], bool] = lambda process: False) -> list[Process]:
    """Everything below process ``of``, the dead but unreaped included; branches that ``without`` names are left out."""
    table = processes.table()
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [of]
    while queue:
        for process in children.get(queue.pop(), []):
            if not without(process):
                found.append(process)
                queue.append(process.pid)
    return found


def marked(value: str) -> list[Process]:
    """Processes whose environment carries this run's marker, as far as this user may read it."""
    needle = (f"{MARKER}={value}").encode()
    found = []
    for process in processes.table().values():
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/environ", "rb") as file:
            if needle in file.read().split(b"\0"):
                found.append(process)
    return found


def end_descendants(spare: set[int], limit_s: float) -> list[str]:
    """Ends what probes left below this process, but not ``spare``; returns the names of those still running."""
    group = os.getpgrp()

    def left() -> list[Process]:
        # A process in this process's own group belongs to no probe: it is a tool that the telemetry thread reads.
        found = descendants(os.getpid(), lambda process: process.pid in spare or process.group == group)
        for process in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        return found

    return end_all(left, limit_s)


def asking(spare: set[int]) -> set[int]:
    """The processes of ``ASKING`` below this one that are not in ``spare`` and have not ended yet."""
    found = descendants(os.getpid(), lambda process: process.pid in spare)
    return {process.pid for process in found if process.name in ASKING and process.state != "Z"}


def end_all(find: Callable[[], list[Process]], limit_s: float) -> list[str]:
    """Ends the processes that ``find`` returns, by SIGTERM and after half of ``limit_s`` by SIGKILL; returns the names.

    Searches again until nothing is left (a process may fork while it is ended), for at most ``limit_s`` seconds.
    """
    names: dict[int, str] = {}
    begun = time.monotonic()
    while True:
        left = find()
        kill = time.monotonic() - begun >= limit_s / 2
        for process in left:
            if process.state == "Z":
                continue
            if kill and process.name not in ASKING:
                privilege.end(process.pid)
            elif process.pid not in names:
                privilege.end(process.pid, signal.SIGTERM)
            names.setdefault(process.pid, process.name)
        if not left or (kill and time.monotonic() - begun > limit_s):
            return list(names.values())
        time.sleep(0.01)


class Watchdog:
    """A small process in a session of its own that ends the job's processes if the agent is killed or never ends.

    It holds no lock and no file of the agent. ``start`` must run before threads and locks exist, since it forks.
    """

    def __init__(self, pid: int, lifeline: int) -> None:
        self.pid = pid
        self._lifeline = lifeline

    @staticmethod
    def start(marker: str, limit_s: float) -> Watchdog:
        """Starts one that also kills this process, with everything it started, once ``limit_s`` seconds are over."""
        agent = os.getpid()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid:
            os.close(reader)
            return Watchdog(pid, writer)
        try:
            os.close(writer)
            _watch(reader, agent, marker, limit_s)
        finally:
            os._exit(0)

    def dismiss(self) -> None:
        """Ends the watchdog; the agent ends by itself."""
        with contextlib.suppress(OSError):
            os.write(self._lifeline, b"!")
            os.close(self._lifeline)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _watch(reader: int, agent: int, marker: str, limit_s: float) -> None:
    os.setsid()
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.chdir("/")
    ready, _, _ = select.select([reader], [], [], limit_s)
    if ready and os.read(reader, 1):
        return  # dismissed
    if not ready:
        # The agent overran its own deadline (for example on a dead mount): the node matters more than its result.
        below = descendants(agent, lambda process: process.pid == os.getpid())
        end_all(lambda: running(below), END_WAIT_S)
        privilege.end(agent)
    end_all(lambda: [process for process in marked(marker) if process.pid != os.getpid()], END_WAIT_S)


def running(those: Iterable[Process]) -> list[Process]:
    """Those of the processes that still run."""
    now = ((each, processes.look_up(each.pid)) for each in those)
    return [found for each, found in now if found and found.started == each.started and found.state != "Z"]
