"""Which job may run on this node: the highest fencing token seen, and the one job that runs.

Two files in the work directory. ``fence`` holds the token; ``running`` is locked by the working agent as long as it
lives (the kernel releases it, however the agent ends) and names its process and job. An agent also reads the fence
every second, so that newer work ends older work even where it may not signal it (another user, another container).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any, Callable

from muster_node import processes
from muster_node.agent import orphans
from muster_node.agent.jobdir import atomic_write, make_folder

TERM_WAIT_S = 3.5
"""Seconds after SIGTERM until an agent is killed; it ends within 2 s by itself."""

KILL_WAIT_S = 2.0

LOCK_WAIT_S = 3.0
"""Seconds to wait for the fence, which is held for one small write only."""


class Fenced(Exception):
    """A newer token has been seen; the message is one sentence."""


class Occupied(Exception):
    """Another job holds the node and may not be ended; the message is one sentence."""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class Fence:
    """The node's fence and its running job, in ``work``. Methods raise OSError where the directory cannot be used.

    That includes a file system without locks: only BlockingIOError means that another process holds one.
    """

    def __init__(self, work: pathlib.Path) -> None:
        self._work = work
        self._token_file = work / "fence"
        self._lock_file = work / "fence.lock"
        self._running_file = work / "running"
        self._running_fd: int | None = None

    def highest(self) -> int:
        """The highest token seen, -1 if none. Raises Fenced if the file is not a number: then the order is unknown."""
        try:
            text = self._token_file.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return -1
        try:
            return int(text)
        except ValueError:
            raise Fenced(
                f"the fence file {self._token_file} does not hold a number; delete it once no test runs on this node"
            ) from None

    def running(self) -> dict[str, Any] | None:
        """The record of the working agent, None if none works."""
        try:
            fd = os.open(str(self._running_file), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return _read_running(fd)
        finally:
            os.close(fd)

    def enter(self, token: int, job_id: str, job_dir: pathlib.Path, stop: Callable[[], str | None]) -> str:
        """Takes the node for a job: older work is ended first. Returns a sentence about what was ended, or "".

        Raises Fenced for a token lower than one seen, Occupied if a job with the same token runs, or an older one
        that cannot be ended, or if ``stop()`` returns a reason to stop waiting.
        """
        make_folder(self._work, mode=0o700)
        self._raise_token(token)
        fd = os.open(str(self._running_file), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            note = self._take(fd, token, stop)
            # While older work was being ended, a still newer plan may have come.
            self._raise_token(token)
        except BaseException:
            os.close(fd)
            raise
        me = processes.look_up(os.getpid())
        record = {
            "pid": os.getpid(),
            "started": me.started if me else 0,
            "namespace": _namespace(),
            "token": token,
            "job_id": job_id,
            "job_dir": str(job_dir),
        }
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(record).encode(), 0)
        self._running_fd = fd
        return note

    def superseded(self, token: int) -> bool:
        """Whether a newer token has been seen meanwhile."""
        try:
            return self.highest() > token
        except (Fenced, OSError):
            return False

    def leave(self) -> None:
        """Releases the node."""
        if self._running_fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._running_fd, 0)
            os.close(self._running_fd)
            self._running_fd = None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(str(self._lock_file), os.O_RDWR | os.O_CREAT, 0o644)
        give_up_at = time.monotonic() + LOCK_WAIT_S
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up_at:
                        note = f"refused: {self._lock_file} is held by a process that does not respond"
                        raise Occupied(note) from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(fd)

    def _raise_token(self, token: int) -> None:
        with self._locked():
            highest = self.highest()
            if token < highest:
                raise Fenced(f"refused: token {token} is older than {highest}, which this node has already seen")
            if token > highest:
                atomic_write(self._token_file, b"%d\n" % token)

    def _take(self, fd: int, token: int, stop: Callable[[], str | None]) -> str:
        note = ""
        started = time.monotonic()
        termed: int | None = None
        killed = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return note
            except BlockingIOError:
                pass
            holder = _read_running(fd)
            waited_s = time.monotonic() - started
            who = "job {} (token {}, pid {})".format(holder.get("job_id"), holder.get("token"), holder.get("pid"))
            # The holder takes the lock before it writes its name: an empty file means that it needs more time.
            if holder and int(holder.get("token", -1)) >= token:
                raise Occupied(f"refused: {who} already works on this node")
            if holder and termed != holder.get("pid"):
                termed = holder.get("pid")
                note = f"older work was ended: {who}"
                _signal(holder, signal.SIGTERM)
            if waited_s > TERM_WAIT_S and not killed:
                killed = True
                _kill_with_children(holder)
            if waited_s > TERM_WAIT_S + KILL_WAIT_S:
                raise Occupied(f"refused: older work, {who}, could not be ended")
            why = stop()
            if why:
                raise Occupied(f"refused: {why} while waiting for {who} to end")
            time.sleep(0.05)


def _read_running(fd: int) -> dict[str, Any]:
    try:
        record = json.loads(os.pread(fd, 65536, 0))
        return record if isinstance(record, dict) else {}
    except (OSError, ValueError):
        return {}


def _is_here(holder: dict[str, Any]) -> bool:
    # A process id means something only in its own namespace, and only until it is given to another process.
    if holder.get("namespace") != _namespace():
        return False
    process = processes.look_up(int(holder.get("pid", 0)))
    return process is not None and process.started == holder.get("started")


def _signal(holder: dict[str, Any], number: int) -> None:
    if _is_here(holder):
        with contextlib.suppress(OSError):
            os.kill(int(holder["pid"]), number)


def _kill_with_children(holder: dict[str, Any]) -> None:
    # Not its process group: that may be shared with the process that launched it and waits for its exit status.
    if not _is_here(holder):
        return
    below = orphans.descendants(int(holder["pid"]))
    _signal(holder, signal.SIGKILL)
    orphans.end_all(lambda: orphans.running(below), orphans.END_WAIT_S)
