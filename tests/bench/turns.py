"""Two programs that do the same steps on one machine, each for some steps while the other stands still.

So both have the machine in the same minutes, and a change of its speed (neighbours, clock, heat) meets both alike.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple

import psutil

from tests.bench.processes import spent, tree

_LOOK_S = 0.01


class Cost(NamedTuple):
    """What some steps took, in seconds of the wall and of all processes' CPU time."""

    wall_s: float
    cpu_s: float


class Side:
    """One program: all processes that these have started so far, stopped except in its own turn.

    Its steps are counted by the bytes that it writes, which the kernel counts for whatever program it is: `step_bytes`
    each, nearly all of them at the step's end. Gloo writes by writev(2), which counts; send(2), as of a heartbeat, does
    not. A turn ends in the midst of a step's bytes, so that a few others move no step to the next turn.
    """

    def __init__(self, roots: Iterable[int], step_bytes: float, limit_s: float) -> None:
        self._processes, self._step_bytes, self._limit_s = tree(roots), step_bytes, limit_s
        self._begun, self._steps = self._written(), 0

    def turn(self, steps: int) -> Cost:
        """Lets it do so many more steps. Raises TimeoutError where they take longer than the limit."""
        self._steps += steps
        until = self._begun + (self._steps - 0.5) * self._step_bytes
        begun, cpu_s = time.monotonic(), spent(self._processes)
        self.signal(signal.SIGCONT)
        while self._written() < until:
            if time.monotonic() - begun > self._limit_s:
                raise TimeoutError(f"{steps} steps were not done within {self._limit_s:g} s")
            time.sleep(_LOOK_S)
        self.signal(signal.SIGSTOP)
        return Cost(time.monotonic() - begun, spent(self._processes) - cpu_s)

    def signal(self, number: int) -> None:
        """Sends a signal to all its processes."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _written(self) -> int:
        total = 0
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                total += process.io_counters().write_chars
        return total


def in_turns(one: Side, other: Side, steps: int, turns: int) -> list[tuple[Cost, Cost]]:
    """The costs of both by pair of turns; who is first alternates, which cancels a steady change of speed."""
    pairs = []
    for number in range(turns):
        costs = [side.turn(steps) for side in ((one, other) if number % 2 else (other, one))]
        pairs.append((costs[0], costs[1]) if number % 2 else (costs[1], costs[0]))
    return pairs
