"""The clock of a simulated machine: it runs faster than real time, the same in every process of the node."""

from __future__ import annotations

import time
from typing import Callable

from muster_node.hardware.seam import Clock


class SimulatedClock(Clock):
    """``speed`` simulated seconds pass per real second; all processes of the host share the origin of ``now``.

    ``tick`` and ``rest`` are the real clock's; a test gives its own.
    """

    def __init__(
        self, speed: float, tick: Callable[[], float] = time.monotonic, rest: Callable[[float], None] = time.sleep
    ) -> None:
        self.speed = speed
        self._tick = tick
        self._rest = rest
        self._opened_wall = time.time()
        self._opened_now = self.now()

    def now(self) -> float:
        """Monotonic simulated seconds."""
        return self._tick() * self.speed

    def wall(self) -> float:
        """Epoch seconds: right when this process opened the machine, then running as fast as ``now``.

        So a job begins at the date that its controller sees, and its series span the simulated seconds of their load.
        """
        return self._opened_wall + self.now() - self._opened_now

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds`` of simulated time."""
        if seconds > 0:
            self._rest(seconds / self.speed)
