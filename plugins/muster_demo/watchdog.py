"""Ends every process that the demo started, detached ones too, when the demo ends.

The demo runs as two processes: a watchdog, and the demo itself as its child. On Linux the watchdog is a subreaper: a
job that detaches itself from its SSH session stays its descendant. All processes also carry ``MARK`` in their
environment, by which the next demo finds what a killed one left.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from types import FrameType

import psutil

from muster_node.processes import PR_SET_PDEATHSIG, become_subreaper, prctl

MARK = "MUSTER_DEMO_DIRECTORY"
"""Environment variable of every process of a demo: the directory it works in."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_S = 0.1


class Stopped(BaseException):
    """A stop signal arrived; raised once in the demo's main thread."""


def die_with_parent() -> None:
    """Have the kernel send this process SIGTERM when the thread that started it ends. For ``preexec_fn``."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def run(demo: Callable[[], int]) -> int:
    """Run ``demo`` in a child process and return its exit status once no descendant of it is left.

    The first SIGINT, SIGTERM or SIGHUP raises Stopped in the demo; later ones are ignored while it cleans up.
    Must be called from the main thread, before any other thread is started.
    """
    become_subreaper()
    sys.stdout.flush()
    sys.stderr.flush()
    received: list[int] = []
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _frame: received.append(number))
    watchdog = os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(_run_demo(demo, watchdog))
    status = _reap_until(child, received)
    end_all(psutil.Process().children(recursive=True), patience_s=0)
    return status


def _run_demo(demo: Callable[[], int], watchdog: int) -> int:
    die_with_parent()
    if os.getppid() != watchdog:
        return 1

    def handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, handler)

    def stop(_received: int, frame: FrameType | None) -> None:
        # An exception on the way into logging's _releaseLock would leave its lock taken, one in ``unraisable`` would be
        # dropped. The watchdog sends the signal again.
        if frame is None or frame.f_globals.get("__name__") not in ("logging", __name__):
            handle(signal.SIG_IGN)
            raise Stopped

    def unraisable(what: sys.UnraisableHookArgs) -> None:
        # Python drops what is raised in a destructor or in a hook of os.fork(). The watchdog sends the signal again.
        if isinstance(what.exc_value, Stopped):
            handle(stop)
        else:
            sys.__unraisablehook__(what)

    handle(stop)
    sys.unraisablehook = unraisable
    try:
        return demo()
    except Stopped:
        return 130
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _reap_until(child: int, received: list[int]) -> int:
    """Reap adopted processes until ``child`` ends: an unreaped job looks alive to a caller that polls its pid.

    Passes the first stop signal of ``received`` on at every look. Python runs a handler between two instructions, so a
    signal that comes just before a call that blocks is seen after it; the next one interrupts the call. A signal whose
    exception Python dropped comes again, too.
    """
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            return os.waitstatus_to_exitcode(status) if not os.WIFSIGNALED(status) else 128 + os.WTERMSIG(status)
        if ended == 0:
            for number in received[:1]:
                os.kill(child, number)  # not reaped, so the pid is its own
            time.sleep(LOOK_S)


def marked(value: str, mark: str = MARK) -> list[psutil.Process]:
    """This user's processes with that value of the variable ``mark``, without this one and its parents."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid not in mine and process.environ().get(mark) == value:
                found.append(process)
        except psutil.Error:
            continue
    return found


def with_descendants(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The processes and their descendants: a process that changes its title overwrites its mark."""
    everyone: dict[int, psutil.Process] = {}
    for process in processes:
        try:
            for member in (process, *process.children(recursive=True)):
                everyone[member.pid] = member
        except psutil.NoSuchProcess:
            continue
    return list(everyone.values())


def end_all(processes: Iterable[psutil.Process], *, patience_s: float) -> list[int]:
    """End processes with all their descendants: SIGTERM, then after ``patience_s`` SIGKILL. Returns the pids left."""
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
    """Whether a process runs; a zombie does not."""
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
