"""Which idle nodes will be tested within the next hours, and when: ``selection`` as of each of its times. Pure."""

from __future__ import annotations

import collections
import datetime
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from muster.model.nodes import Node
from muster.rules.idle.capacity import FULL, Room
from muster.rules.idle.selection import STEP, Known, Planned, ranked, sorted_out

Entry = tuple[int, "Node", Callable[[], Planned]]
"""A node's place in the order, the node, and what makes its plan."""


def forecast(
    known: Known,
    *,
    closed_at: Callable[[datetime.datetime], str] = lambda at: "",
    hours: float = 24.0,
) -> tuple[list[tuple[datetime.datetime, Planned]], Mapping[str, str]]:
    """Returns the tests that start within ``hours``, and by node why each other is not tested.

    It assumes that nodes which are idle now stay idle, that each test takes its minutes and passes, and that the runs
    which hold nodes now end after the minutes of a whole test. It plans one test of a node, and none of those that were
    tested just now. ``closed_at``: returns why no test starts at a time.
    """
    from muster.rules.idle import hazard  # brings numpy

    ready, passed_over = sorted_out(known)
    room = known.room()
    line = _Line(ranked(ready, known), room, known)
    ends: dict[int, list[Node]] = collections.defaultdict(list)  # by step
    ends[_steps(hazard.minutes_of().max())] += [node for node in known.nodes if node.name in known.leased]
    tests: list[tuple[datetime.datetime, Planned]] = []
    for step in range(_steps(hours * 60.0)):
        at = known.now + step * STEP
        for node in ends.pop(step, ()):
            room.free(node, known.sign(node))
        if closed_at(at):
            continue
        for _, node, plan in line.begin():
            planned = plan()
            tests.append((at, planned))
            ends[step + _steps(planned.minutes)].append(node)
    later = f"{len(tests)} tests come first in the next {hours:g} hours"
    passed_over |= {node.name: why or later for node, why in line.left()}
    return tests, passed_over


def _steps(minutes: float) -> int:
    return math.ceil(minutes * 60.0 / STEP.total_seconds())


class _Line:
    """The nodes by urgency, each behind the limit that it met. One pass of ``selection.choose`` costs as many steps as
    there are nodes; this costs as many as there are limits, so that a day of 100,000 nodes is planned in seconds.
    """

    def __init__(self, order: Iterable[tuple[Node, Callable[[], Planned]]], room: Room, known: Known) -> None:
        self._rest: Iterator[Entry] = ((rank, *each) for rank, each in enumerate(order))
        self._room, self._known = room, known
        self._next = next(self._rest, None)
        # By limit, of what, and the SKU, since each has canaries of its own.
        self._held: dict[tuple[str, str, str], list[Entry]] = collections.defaultdict(list)

    def begin(self) -> Iterator[Entry]:
        """Yields the nodes whose tests begin now, and counts them: those that ``choose`` would choose, in its order."""
        heads = [(held[0][0], limit) for limit, held in self._held.items() if held]
        heapq.heapify(heads)
        while heads or self._next:
            if heads and (self._next is None or heads[0] < (self._next[0],)):
                _, behind = heapq.heappop(heads)
                entry = self._held[behind][0]
            elif self._next:
                behind, entry = None, self._next
            _, node, _ = entry
            sign = self._known.sign(node)
            found = self._room.barrier(node, sign)
            if found is not None and found[0] == FULL:
                return
            barrier = (*found, node.sku) if found else None
            if behind is None:
                self._next = next(self._rest, None)
            elif barrier != behind:
                heapq.heappop(self._held[behind])
                if held := self._held[behind]:
                    heapq.heappush(heads, (held[0][0], behind))
            if barrier is None:
                self._room.take(node, sign)
                yield entry
            elif barrier != behind:
                heapq.heappush(self._held[barrier], entry)

    def left(self) -> Iterator[tuple[Node, str]]:
        """Yields the other nodes, each with the limit that it met, "" if it met none but the share."""
        for (limit, of, _), held in self._held.items():
            yield from ((node, self._room.why(node, limit, of)) for _, node, _ in held)
        if self._next:
            yield self._next[1], ""
        yield from ((node, "") for _, node, _ in self._rest)
