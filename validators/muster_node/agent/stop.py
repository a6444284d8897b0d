"""The reasons that end a job before its probes have run."""

from __future__ import annotations

import signal
import time
from typing import Any, Callable

from muster_node import contract

FENCE_POLL_S = 1.0
END_WITHIN_S = 1.7
"""A job is gone within 2 s of its stop; the rest is for its result and the interpreter's end."""

PATIENCE_MIN_S = 0.05


class Stop:
    """Why the job has to stop now: SIGTERM, its own deadline, or newer work on this node. None while it need not."""

    def __init__(self, deadline_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._deadline_s = deadline_s
        self._deadline_at = monotonic() + deadline_s
        self._stopped_at: float | None = None
        self._superseded: Callable[[], bool] = lambda: False
        self._polled_at = monotonic()
        self._signal = 0
        self.end = ""
        self.sentence = ""

    def catch_signals(self) -> None:
        """SIGTERM, SIGINT and SIGHUP end the job; a hang-up that the launcher chose to ignore stays ignored."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note_signal)

    def watch(self, superseded: Callable[[], bool]) -> None:
        """From now on a newer fencing token ends the job too."""
        self._superseded = superseded

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._deadline_at - self._monotonic()

    def patience_s(self, usual_s: float, hurried_s: float) -> float:
        """How long (s) a step may take: ``usual_s``, or what remains of ``END_WITHIN_S``, ``hurried_s`` at most."""
        if not self() or self._stopped_at is None:
            return usual_s
        left = self._stopped_at + END_WITHIN_S - self._monotonic()
        return max(PATIENCE_MIN_S, min(usual_s, hurried_s, left))

    def __call__(self) -> str | None:
        """Why to stop, as a clause; None to go on."""
        if not self.end:
            self._look()
        return self.sentence or None

    def _look(self) -> None:
        now = self._monotonic()
        if now - self._polled_at >= FENCE_POLL_S or self._signal:
            self._polled_at = now
            if self._superseded():
                self._set(contract.END_FENCED, "newer work has come to this node")
                return
        if self._signal:
            name = signal.Signals(self._signal).name
            self._set(contract.END_TERMINATED, f"{contract.PREEMPTED} by {name}")
        elif now >= self._deadline_at:
            self._set(contract.END_DEADLINE, f"the job's deadline of {self._deadline_s:g} s was reached")

    def _set(self, end: str, sentence: str) -> None:
        self.end, self.sentence = end, sentence
        if self._stopped_at is None:
            self._stopped_at = self._monotonic()

    def _note_signal(self, number: int, frame: Any) -> None:
        self._signal = self._signal or number
        if self._stopped_at is None:
            self._stopped_at = self._monotonic()
