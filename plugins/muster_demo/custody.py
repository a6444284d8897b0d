"""Keeps every process that the demo starts, however detached, and ends them all with it.

The demo runs as two processes: a keeper that does nothing but adopt, reap and finally end, and below it the demo
proper. On Linux the keeper is a subreaper: a job that detaches itself from its SSH session stays its descendant. All
processes also carry ``MARK`` in their environment, by which the leftovers of a killed demo are found by the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable

import psutil

MARK = "MUSTER_DEMO_DIRECTORY"
"""Environment variable that every process of a demo carries: the directory it works in."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Stopped(BaseException):
    """Somebody asked the demo to stop; raised once in its main thread, wherever that is."""


def _prctl(option: int, argument: int) -> None:
    """One option of Linux's prctl(2); elsewhere nothing, there the mark alone must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel send this process SIGTERM when the thread that started it ends. For ``preexec_fn``."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def keep(demo: Callable[[], int]) -> int:
    """Run ``demo`` in a child process; when this returns its exit status, no descendant of it is left.

    SIGINT, SIGTERM and SIGHUP raise Stopped in the demo, the first time; further ones are ignored while it cleans up.
    Must be called from the main thread, before any other thread is started.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    sys.stdout.flush()
    sys.stderr.flush()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(_run_demo(demo, keeper))
    for number in STOP_SIGNALS:
        signal.signal(number, lambda received, _frame: _forward(child, received))
    status = _reap_until(child)
    end_all(psutil.Process().children(recursive=True), patience_s=0)
    return status


def _run_demo(demo: Callable[[], int], keeper: int) -> int:
    die_with_parent()
    if os.getppid() != keeper:
        return 1

    def stop(_received: int, _frame: object) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    try:
        return demo()
    except Stopped:
        return 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _forward(child: int, received: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, received)


def _reap_until(child: int) -> int:
    """Reap whatever is adopted until ``child`` ends; an unreaped job would look alive to those who poll its pid."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            return os.waitstatus_to_exitcode(status) if not os.WIFSIGNALED(status) else 128 + os.WTERMSIG(status)


def marked(directory: str) -> list[psutil.Process]:
    """This user's processes that carry the mark of a demo in ``directory``, but not this one and its parents."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid not in mine and process.environ().get(MARK) == directory:
                found.append(process)
        except psutil.Error:
            continue
    return found


def with_descendants(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The processes and everything below them: some retitle themselves, which overwrites the mark they were given."""
    everyone: dict[int, psutil.Process] = {}
    for process in processes:
        try:
            for member in (process, *process.children(recursive=True)):
                everyone[member.pid] = member
        except psutil.NoSuchProcess:
            continue
    return list(everyone.values())


def end_all(processes: Iterable[psutil.Process], *, patience_s: float) -> list[int]:
    """End processes with all their descendants: SIGTERM, then after ``patience_s`` SIGKILL. Returns who survived."""
    wanted = with_descendants(processes)
    if patience_s > 0:
        _send(wanted, signal.SIGTERM)
        psutil.wait_procs(wanted, timeout=patience_s)
    deadline = time.monotonic() + 10
    while (running := [process for process in with_descendants(wanted) if alive(process)]) and (
        time.monotonic() < deadline
    ):
        _send(running, signal.SIGKILL)
        psutil.wait_procs(running, timeout=0.5)
        wanted = running
    return [process.pid for process in running]


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that has ended but was not reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _send(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue
