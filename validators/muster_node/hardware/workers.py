"""Threads that start and work together; one that hangs holds the others up for a while only."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable

START_LIMIT_S = 300.0
"""Real seconds that workers wait for one that does not come to the start. Chosen here: operands are made in seconds."""
LATE_S = 120.0
"""Real seconds for which the last workers may run on after the first has done its work, at the least. Chosen here: the
work of alike devices ends within seconds of each other; a driver reports a hang itself within a minute, if at all."""
_JOIN_S = 0.05

Job = Callable[[Callable[[], Any]], Any]
"""The work of one thread, from its start signal. A result with an ``error`` that is not empty ended before its time."""


class StartAborted(Exception):
    """Raised in workers that wait for others, one of which has failed."""


class StartSignal:
    """A barrier that workers may leave: it does not wait for ended workers, nor forever for those that hang."""

    def __init__(self, workers: int, limit_s: float) -> None:
        self._condition = threading.Condition()
        self._workers, self._waiting, self._round, self._aborted = workers, 0, 0, False
        self._limit_s = limit_s

    def wait(self) -> None:
        """Return once all workers that have not left wait, or the limit has passed.

        Raises StartAborted if one of them fails.
        """
        with self._condition:
            self._waiting += 1
            this = self._round
            self._release_if_all_wait()
            if not self._condition.wait_for(lambda: self._aborted or self._round != this, self._limit_s):
                self._workers = self._waiting  # those that are missing hang
                self._release_if_all_wait()
            if self._round == this:
                raise StartAborted("another worker failed")

    def leave(self) -> None:
        """This worker has ended."""
        with self._condition:
            self._workers -= 1
            self._release_if_all_wait()

    def abort(self) -> None:
        """Report that this worker failed, so that no worker starts."""
        with self._condition:
            self._aborted = True
            self._condition.notify_all()

    def _release_if_all_wait(self) -> None:
        if self._waiting and self._waiting >= self._workers:
            self._waiting, self._round = 0, self._round + 1
            self._condition.notify_all()


@dataclasses.dataclass(frozen=True)
class NotEnded:
    """Stands for the result of a worker that had not ended so long after it was started."""

    after_s: float


class Threads:
    """Workers in threads of their own, which are left behind if they hang (a pool would wait for them at its end).

    ``takes_s``: how long the work takes from the start signal, where that is known.
    """

    def __init__(self, jobs: Sequence[Job], start_limit_s: float, takes_s: float | None = None) -> None:
        self._start_limit_s, self._takes_s = start_limit_s, takes_s
        self._start = StartSignal(len(jobs), start_limit_s)
        self._results: dict[int, Any] = {}
        self._errors: dict[int, BaseException] = {}
        self._done_at: list[float] = []
        self._begun = time.monotonic()
        self._threads = [
            threading.Thread(target=self._work, args=(index, job), name=f"worker {index}", daemon=True)
            for index, job in enumerate(jobs)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, index: int, job: Job) -> None:
        try:
            result = self._results[index] = job(self._start.wait)
            # One that failed early says nothing of how long the work takes.
            if not getattr(result, "error", ""):
                self._done_at.append(time.monotonic())
        except BaseException as error:
            self._errors[index] = error
            self._done_at.append(time.monotonic())  # there are no results to wait for
            self._start.abort()
        finally:
            self._start.leave()

    def running(self) -> bool:
        """Whether any is still at work."""
        return any(thread.is_alive() for thread in self._threads)

    def overdue(self, late_s: float) -> bool:
        """Whether the rest hangs: it has run ``late_s`` longer than the first that did its work, and twice as long (not
        counting ``takes_s``, which all take); or ``late_s`` longer than ``takes_s`` from the latest start, since the
        others may have failed. A probe's own time limit leaves less than twice ``takes_s``."""
        now, first, takes_s = time.monotonic(), min(self._done_at, default=math.inf), self._takes_s or 0.0
        if self._takes_s is not None and now - self._begun > self._start_limit_s + takes_s + late_s:
            return True
        return now - first > max(late_s, first - self._begun - takes_s)

    def join(self) -> None:
        """Waits a moment for a worker that is still running."""
        next((thread for thread in self._threads if thread.is_alive()), self._threads[0]).join(_JOIN_S)

    def results(self) -> list[Any]:
        """What each returned, in order; NotEnded for those that are still at work. Raises the first worker's error."""
        for error in sorted(self._errors.values(), key=lambda error: isinstance(error, StartAborted)):
            raise error
        late = NotEnded(time.monotonic() - self._begun)
        return [self._results.get(index, late) for index in range(len(self._threads))]
