"""What all ranks do on the path that they share: together, for as long as it moves, and given up together if it stands.

A call into a path that hangs does not return, and nothing in this process can end it. So a second thread of each rank
tells the others whether its act is over and how much this process has read and written; all of them see the same, and
so decide the same. Where they give up, that thread ends the rank.
"""

from __future__ import annotations

import math
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from muster_node.hardware.seam import RealClock

if TYPE_CHECKING:
    from muster_node.cluster.rank import RankGroup

PATIENCE_S = 300.0
"""Seconds for which nothing may move on any rank: chosen here. What stands still for five minutes costs a training more
than its checkpoints save."""

MOVED_BYTES = 1 << 16
"""Less than this from one look to the next does not count: to look is to read, too."""

_LOOK_S = 2.0
_FIRST_LOOK_S = 0.02
_CLOCK = RealClock()

STILL, OVER = "still", "over"
"""Why an act was given up: nothing moved, or it took longer than it may."""

Late = Callable[[str, str], None]
"""Gets why (``STILL`` or ``OVER``) and what was given up; has to end the rank."""


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
        why, before = "", list[Any]()
        while True:
            over.wait(min(_LOOK_S, _FIRST_LOOK_S + (_CLOCK.now() - begun) / 10.0))
            done = over.is_set()
            seen = self._group.gather([done, io_bytes(), given[0] if done else None, why])
            if all(each[0] for each in seen):
                answers += [each[2] for each in seen]
                return
            if any(each[3] for each in seen):
                self._late(next(each[3] for each in seen if each[3]), what)
            now = _CLOCK.now()
            if _moved(before, seen):
                moved_at = now
            before = seen
            why = OVER if now - begun > within_s else STILL if now - moved_at > self._patience_s else ""


def io_bytes() -> int:
    """Bytes that this process has read and written so far; 0 where the kernel does not tell."""
    try:
        lines = pathlib.Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar:", "wchar:")))
    except (OSError, ValueError, IndexError):
        return 0


def _moved(before: Sequence[Sequence[Any]], seen: Sequence[Sequence[Any]]) -> bool:
    """Whether on any rank an act ended, or bytes went to or fro."""
    if not before:
        return True
    return any(now[0] > then[0] or now[1] - then[1] >= MOVED_BYTES for then, now in zip(before, seen))
