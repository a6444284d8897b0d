"""Processes as the kernel lists them, and how one of ours begins and ends. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import sys
import time
from typing import NamedTuple, NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

LOOK_S = 1.0
"""How often a parent that waits looks whether its child has died, and how long it waits for the kernel to reap it."""


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
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when ``parent`` dies, also if it is dead already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def prctl(option: int, value: int) -> None:
    """Sets an option of Linux's prctl(2); does nothing on other systems."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def go_on_in_child() -> int:
    """Goes on in a child; this process ends as the child does, and passes on the signals that it gets meanwhile.

    A process of which one thread hangs in a driver (state D) can neither be reaped nor closes its files, so that its
    caller would wait for it in vain. Returns what ``leave`` takes. Call it before threads and locks exist: it forks.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where the caller ignores it, the kernel would keep no status
    parent = os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        _end_as(child, reader)
    os.close(reader)
    die_with_parent(parent)
    return writer


def _end_as(child: int, reader: int) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda received, _: os.kill(child, received))
    dead = False
    while not dead:
        found = look_up(child)
        # Looked at first: what it sent before its death is there by then. Of one that cannot be looked up nothing is
        # known, since a child that is dead can be until it is reaped.
        dead = found is not None and found.state in "ZX"
        if select.select([reader], [], [], 0 if dead else LOOK_S)[0]:
            sent = os.read(reader, 1)
            if sent:
                os._exit(sent[0])
            dead = True
    until = time.monotonic() + LOOK_S
    while time.monotonic() < until:
        pid, how = os.waitpid(child, os.WNOHANG)
        if pid:
            status = os.waitstatus_to_exitcode(how)
            os._exit(status if status >= 0 else 128 - status)  # as a shell has it
        time.sleep(0.01)
    os._exit(128 + signal.SIGKILL)


def leave(status: int, report: int | None = None) -> NoReturn:
    """Ends this process at once: threads that hang in a driver would keep the interpreter from exiting.

    ``report``: what ``go_on_in_child`` returned.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.close(fd)
    if report is not None:
        with contextlib.suppress(OSError):
            os.write(report, bytes([status & 0xFF]))
    os._exit(status)
