"""Which idle nodes will be tested in the next hours, and when: in the current order, as places become free. Pure."""

from __future__ import annotations

import collections
import datetime
import math
from collections.abc import Callable, Mapping

from muster.model.nodes import Node
from muster.rules.idle.capacity import FULL
from muster.rules.idle.selection import STEP, Known, Planned, cost_of, ranked, sorted_out, too_long


def forecast(
    known: Known,
    *,
    closed_at: Callable[[datetime.datetime], str] = lambda at: "",
    hours: float = 24.0,
) -> tuple[list[tuple[datetime.datetime, Planned]], Mapping[str, str]]:
    """Returns the tests that start within ``hours``, and by node why each other is not tested.

    It assumes that nodes which are idle now stay idle, that each test takes its minutes and passes, and that the runs
    which test nodes now end after the minutes of a whole test. It plans one test of each node, none of nodes tested
    just now, and keeps the current order. ``closed_at``: returns why no test starts at a time.
    """
    tests: list[tuple[datetime.datetime, Planned]] = []
    passed_over: dict[str, str] = {}
    for each in known.kinds():
        found, others = _forecast(each, closed_at, hours)
        tests += found
        passed_over |= others
    return sorted(tests, key=lambda test: test[0]), passed_over


def _forecast(
    known: Known, closed_at: Callable[[datetime.datetime], str], hours: float
) -> tuple[list[tuple[datetime.datetime, Planned]], Mapping[str, str]]:
    ready, passed_over = sorted_out(known)
    room = known.room()
    ends: dict[int, list[Node]] = collections.defaultdict(list)  # by step
    running = {*known.leased} - {*known.queued}
    under_way = [node for node in known.nodes if node.name in running]
    for node, minutes in zip(under_way, cost_of(under_way, known).max(axis=1).tolist(), strict=True):
        ends[_steps(minutes)].append(node)
    order, planned = ranked(ready, known, by_slots=False)
    passed_over |= too_long(ready, order, known.limits)
    line = collections.deque(order)
    tests: list[tuple[datetime.datetime, Planned]] = []
    changed = True  # since the line was looked through
    shut = ""  # why no test started, where one might have
    for step in range(_steps(hours * 60.0)):
        at = known.now + step * STEP
        for node in ends.pop(step, ()):
            room.free(node, known.sign(node))
            changed = True
        if not changed:
            continue
        if why := closed_at(at):
            shut = why
            continue
        held = []  # by a limit: they keep their places, before the others
        while line:
            place = line.popleft()
            node = ready[place]
            sign = known.sign(node)
            if barrier := room.barrier(node, sign):
                held.append(place)
                if barrier[0] == FULL:
                    break
                continue
            room.take(node, sign)
            tests.append((at, test := planned(place)))
            ends[step + _steps(test.minutes)].append(node)
        line.extendleft(reversed(held))
        changed = False
    later = f"{len(tests)} tests come first in the next {hours:g} hours" if tests else shut
    for node in map(ready.__getitem__, line):
        limit = room.barrier(node, known.sign(node))
        passed_over[node.name] = room.why(node, *limit) if limit and (limit[0] != FULL or not tests) else later
    return tests, passed_over


def _steps(minutes: float) -> int:
    return math.ceil(minutes * 60.0 / STEP.total_seconds())
