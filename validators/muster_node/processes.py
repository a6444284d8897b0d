"""Processes as the kernel lists them, and how one of ours begins and ends. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
from typing import NamedTuple, NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Process(NamedTuple):
    """One line of the process table. ``started`` and ``ticks`` (CPU time) are in clock ticks, ``started`` since boot:
    with the pid it names a process."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    ticks: int
    started: int


def parse_stat(text: str) -> Process | None:
    """/proc/PID/stat (proc(5)), None for any other text; the name may hold blanks and brackets."""
    found = re.match(r"(\d+) \((.*)\) (\S)((?: -?\d+){19,})", text, re.DOTALL)
    if found is None:
        return None
    pid, name, state, rest = found.groups()
    fields = [int(word) for word in rest.split()]
    return Process(int(pid), name, state, fields[0], fields[1], fields[2], fields[10] + fields[11], fields[18])


def look_up(pid: int, proc: str = "/proc") -> Process | None:
    """The process with this id, None if there is none."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return parse_stat(file.read().decode("utf-8", "replace"))
    except OSError:
        return None


def table(proc: str = "/proc") -> dict[int, Process]:
    """All processes that can be seen, by id."""
    found = (look_up(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def become_subreaper() -> None:
    """Makes this process the parent of orphaned descendants, where the system supports that."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when ``parent`` dies, also if it is dead already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def leave(status: int) -> NoReturn:
    """Ends this process at once: threads that hang in a driver would keep the interpreter from exiting."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
