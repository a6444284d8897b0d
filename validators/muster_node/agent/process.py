"""One child process under control: its own group, a time limit, its output drained and capped, an end in any case."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Callable

from muster_node import processes

TICK_S = 0.1
TERM_GRACE_S = 2.0
"""A child that is out of time gets this long after SIGTERM."""

STOP_GRACE_S = 0.4
"""The same when the whole job has to end within 2 s."""

KILL_WAIT_S, STOP_KILL_WAIT_S = 2.0, 0.4
"""A child that is not gone this long after SIGKILL sits in the kernel: it is left behind."""

LINE_MAX = 64 * 1024
READ_BYTES = 64 * 1024
DRAIN_BYTES = 4 * 1024 * 1024

TIMEOUT = "timeout"
REFUSED = "refused"


class BadLine(Exception):
    """The child sent a line that it may not send; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class ChildEnd:
    """How a child ended. ``returncode`` is None if it could not be killed. ``cut`` is why it was ended: "" if it
    ended by itself, TIMEOUT, REFUSED (``detail`` is the sentence), or the reason that ``stop()`` gave.
    """

    returncode: int | None
    cut: str
    detail: str
    pid: int


class CappedLog:
    """A child's output: the first 768 KiB and the last 128 KiB of it, whatever its length."""

    HEAD = 768 * 1024
    TAIL = 128 * 1024

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.size = 0
        self._tail: collections.deque[bytes] = collections.deque()
        self._tail_size = 0
        self._written = 0
        self._file: int | None = None

    def add(self, data: bytes) -> None:
        """Takes output. A disk that is full costs the log, nothing else."""
        self.size += len(data)
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self.TAIL:
            self._tail_size -= len(self._tail.popleft())
        head = data[: max(0, self.HEAD - self._written)]
        if head:
            self._written += len(head)
            self._put(head)

    def close(self) -> None:
        """Adds the tail of a long output to its head."""
        if self.size > self.HEAD:
            tail = b"".join(self._tail)[-min(self.TAIL, self.size - self.HEAD) :]
            left_out = self.size - self.HEAD - len(tail)
            self._put((b"\n[%d bytes left out]\n" % left_out if left_out else b"") + tail)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def last_line(self) -> str:
        """The last line that is not blank, 200 characters at most."""
        text = b"".join(self._tail)[-4096:].decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return "".join(c if c.isprintable() else "?" for c in lines[-1][:200]) if lines else ""

    def _put(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = os.open(str(self.path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(self._file, data)


class _Lines:
    """Cuts a stream into lines and hands them on."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._rest = b""

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                self._take(line)
        if len(self._rest) > LINE_MAX:
            raise BadLine(f"it sent a line longer than {LINE_MAX} bytes")


def run_child(
    command: Callable[[int], Sequence[str]],
    *,
    env: dict[str, str],
    cwd: pathlib.Path,
    timeout_s: float,
    stop: Callable[[], str | None],
    take: Callable[[bytes], None],
    log: CappedLog,
    tick: Callable[[], None] = lambda: None,
) -> ChildEnd:
    """Runs ``command(fd)``, fd being the line to the agent, until its end, the time limit, or a reason from ``stop()``.

    ``take`` gets each line that the child sends and may raise BadLine, which ends the child. What it started in its
    own process group dies with it. Raises OSError if it cannot be started. Call it from the main thread only: the
    kernel ties the parent-death signal to the thread that started the child.
    """
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            list(command(writer)),
            env=env,
            cwd=str(cwd),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(writer,),
            start_new_session=True,
        )
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    assert process.stdout is not None
    output = process.stdout.fileno()
    sinks: dict[int, Callable[[bytes], None]] = {reader: _Lines(take).add, output: log.add}
    try:
        cut, detail = _listen(process, sinks, time.monotonic() + timeout_s, stop, tick)
        hurried = cut not in ("", TIMEOUT, REFUSED)
        waits = (STOP_GRACE_S, STOP_KILL_WAIT_S) if hurried else (TERM_GRACE_S, KILL_WAIT_S)
        gone = _finish(process, *waits)
        if cut != REFUSED:
            try:
                _drain(sinks)
            except BadLine as bad:
                cut, detail = cut or REFUSED, str(bad)
    finally:
        os.close(reader)
        process.stdout.close()
        log.close()
    return ChildEnd(process.returncode if gone else None, cut, detail, process.pid)


def _listen(
    process: subprocess.Popen[bytes],
    sinks: dict[int, Callable[[bytes], None]],
    give_up_at: float,
    stop: Callable[[], str | None],
    tick: Callable[[], None],
) -> tuple[str, str]:
    with selectors.DefaultSelector() as selector:
        for fd in sinks:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ)
        while process.poll() is None:
            why = stop()
            if why:
                return why, ""
            if time.monotonic() >= give_up_at:
                return TIMEOUT, ""
            tick()
            if not selector.get_map():
                time.sleep(TICK_S / 10)  # both lines are closed: it is about to end, or hangs
            for key, _ in selector.select(TICK_S) if selector.get_map() else ():
                data = os.read(key.fd, READ_BYTES)
                try:
                    sinks[key.fd](data)
                except BadLine as bad:
                    return REFUSED, str(bad)
                if not data:
                    selector.unregister(key.fd)
    return "", ""


def _drain(sinks: dict[int, Callable[[bytes], None]]) -> None:
    # Only the data in the pipes at its end, not until end of file: a grandchild may hold the other end open.
    for fd, sink in sinks.items():
        taken = 0
        while taken < DRAIN_BYTES:
            try:
                data = os.read(fd, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            taken += len(data)
            sink(data)


def _finish(process: subprocess.Popen[bytes], grace_s: float, kill_wait_s: float) -> bool:
    """Ends the child and its group, by SIGTERM, then by SIGKILL. Returns False if it cannot be killed."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        _gone(process, grace_s)
    # Also if the leader has ended: the rest of its group must not outlive it.
    _signal_group(process.pid, signal.SIGKILL)
    return _gone(process, kill_wait_s)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _gone(process: subprocess.Popen[bytes], wait_s: float) -> bool:
    until = time.monotonic() + wait_s
    while process.poll() is None:
        if time.monotonic() >= until:
            return False
        time.sleep(0.01)
    return True


def state_of(pid: int) -> str:
    """The kernel's one-letter state of a process ("D" is uninterruptible sleep), "" if it is gone."""
    process = processes.look_up(pid)
    return process.state if process else ""


def signal_name(number: int) -> str:
    """The name of a signal: SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe(parts: list[str]) -> str:
    """Clauses to one sentence, 400 characters at most."""
    return "; ".join(part for part in parts if part)[:400]
