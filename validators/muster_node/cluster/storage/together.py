"""Acts of all ranks on their shared path: done together while data moves, and given up together if nothing does.

A call into a path that hangs does not return, and nothing in this process can end it. So a second thread of each rank
tells the others whether its act is over, how much this process has read and written, and how much written data still
waits in the kernel's memory; all see the same values and therefore decide alike. If they give up, that thread ends the
rank.
"""

from __future__ import annotations

import math
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from muster_node.hardware.seam import RealClock

if TYPE_CHECKING:
    from muster_node.cluster.rendezvous.rank import RankGroup

PATIENCE_S = 300.0
"""Seconds for which nothing may move on any rank: chosen here. A path that stops for five minutes costs a training more
than its checkpoints save."""

MOVED_BYTES = 1 << 16
"""Less than this from one look to the next does not count: to look is to read, too."""

_LOOK_S = 2.0
_FIRST_LOOK_S = 0.02
_CLOCK = RealClock()

STILL, OVER = "still", "over"
"""Why an act was given up: nothing moved, or it took longer than it may."""

Late = Callable[[str, str, float], None]
"""Gets why (``STILL`` or ``OVER``), what was given up and the seconds that it had; has to end the rank."""


class Together:
    """Acts of all ranks at once. All ranks have to call it alike."""

    def __init__(self, group: RankGroup, late: Late, patience_s: float) -> None:
        self._group, self._late, self._patience_s = group, late, patience_s

    def __call__(self, what: str, act: Callable[[], Any], within_s: float = math.inf) -> list[Any]:
        """What ``act`` gave in each rank, by rank. It may move for ``within_s`` s at most."""
        over, given = threading.Event(), list[Any]()
        answers: list[Any] = []
        self._group.wait(what)
        thread = threading.Thread(target=self._watch, args=(what, within_s, over, given, answers), daemon=True)
        thread.start()
        given.append(act())  # what it raises ends the rank, and the others with it
        over.set()
        thread.join()
        self._group.work()
        return answers

    def _watch(
        self, what: str, within_s: float, over: threading.Event, given: list[Any], answers: list[Any]
    ) -> None:  # fmt: skip
        begun = moved_at = _CLOCK.now()
        why, movement = "", Movement()
        while True:
            over.wait(min(_LOOK_S, _FIRST_LOOK_S + (_CLOCK.now() - begun) / 10.0))
            done = over.is_set()
            seen = self._group.gather([done, io_bytes(), given[0] if done else None, why, unwritten_bytes()])
            if all(each[0] for each in seen):
                answers += [each[2] for each in seen]
                return
            if any(each[3] for each in seen):
                self._late(next(each[3] for each in seen if each[3]), what, within_s)
            now = _CLOCK.now()
            if movement.seen([(each[0], each[1], each[4]) for each in seen]):
                moved_at = now
            why = OVER if now - begun > within_s else STILL if now - moved_at > self._patience_s else ""


def io_bytes() -> int:
    """Bytes that this process has read and written so far; 0 where the kernel does not tell."""
    try:
        lines = pathlib.Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar:", "wchar:")))
    except (OSError, ValueError, IndexError):
        return 0


def unwritten_bytes(file: pathlib.Path = pathlib.Path("/proc/meminfo")) -> int:
    """Bytes in this node's memory that wait to be written; 0 where the kernel does not tell."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Dirty:", "Writeback:")))
    except (OSError, ValueError, IndexError):
        return 0


class Movement:
    """Whether anything moves on any rank, from one look at all of them to the next."""

    def __init__(self) -> None:
        self._done = list[bool]()
        self._io = list[int]()
        self._lowest = list[int]()

    def seen(self, looks: Sequence[tuple[bool, int, int]]) -> bool:
        """Whether, on any rank, an act ended, bytes were read or written, or less data waits to be written than ever
        before.

        ``looks``: by rank, whether its act is over, ``io_bytes`` and ``unwritten_bytes``. A buffered write is over for
        this process while the kernel still writes it. Other programs write too: the waiting data falls again and again,
        but below its lowest for minutes only if much is written.
        """
        done, io, unwritten = [each[0] for each in looks], [each[1] for each in looks], [each[2] for each in looks]
        if not self._done:
            self._done, self._io, self._lowest = done, io, unwritten
            return True
        any_moved = False
        for rank in range(len(looks)):
            filled = io[rank] - self._io[rank] >= MOVED_BYTES
            drained = self._lowest[rank] - unwritten[rank] >= MOVED_BYTES
            any_moved = any_moved or filled or drained or done[rank] > self._done[rank]
            if filled or drained:
                self._lowest[rank] = unwritten[rank]
        self._done, self._io = done, io
        return any_moved
