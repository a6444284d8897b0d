"""CPU seconds of processes and of all they started, split by what the process says it is doing."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import defaultdict
from collections.abc import Iterable

import psutil


def cpu_seconds(roots: Iterable[int]) -> float:
    """User and system time of these processes, of their living descendants, and of those that were reaped."""
    return spent(tree(roots))


def tree(roots: Iterable[int]) -> list[psutil.Process]:
    """These processes and their living descendants."""
    found: list[psutil.Process] = []
    for root in roots:
        with contextlib.suppress(psutil.Error):
            found += [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    return found


def spent(processes: Iterable[psutil.Process]) -> float:
    """User and system time of these processes, and of what they have reaped."""
    return sum(_own_and_reaped(process) for process in processes)


def _own_and_reaped(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return times.user + times.system + times.children_user + times.children_system
    return 0.0


def _task_in(title: str) -> str | None:
    found = re.search(r"LocalExecutor.*?([0-9a-f-]{36})", title)
    return found.group(1) if found else None


class StepSampler:
    """Attributes the CPU time of LocalExecutor's workers to the task instance whose id stands in their titles."""

    def __init__(self, scheduler: int, interval_s: float = 0.05) -> None:
        self.scheduler = scheduler
        self.interval_s = interval_s
        self.seconds: dict[str, float] = defaultdict(float)
        self._last: dict[int, float] = {}
        self._step: dict[int, str | None] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StepSampler:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._stop.wait(self.interval_s):
            self._sample()

    def _sample(self) -> None:
        with contextlib.suppress(psutil.Error):
            for worker in psutil.Process(self.scheduler).children():
                now = cpu_seconds([worker.pid])
                title = " ".join(worker.cmdline())
                # What was used since the last look belongs to the step that was under way then, or began meanwhile.
                step = _task_in(title) or self._step.get(worker.pid)
                if step is not None and worker.pid in self._last:
                    self.seconds[step] += max(0.0, now - self._last[worker.pid])
                self._last[worker.pid] = now
                self._step[worker.pid] = _task_in(title)
