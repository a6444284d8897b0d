"""Which idle production nodes are tested again now: the stalest first, and never more than a share of the fleet. Pure.

A node is not tested if the backend does not know it, a run holds it, or the circuit breaker bars it.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from muster.lifecycle.transitions import SERVING, State

if TYPE_CHECKING:
    from muster.records import NodeRecord

NEVER = datetime.datetime.min.replace(tzinfo=datetime.UTC)


@dataclasses.dataclass(frozen=True)
class Idle:
    """Whether a node is in service and unused; ``why`` gives the reason where it is not."""

    idle: bool
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Choice:
    """``chosen``, stalest first, and why each other production node was passed over."""

    chosen: tuple[str, ...]
    passed_over: Mapping[str, str]


def nothing_bars(node: NodeRecord) -> str:
    """The circuit breaker that never opens."""
    return ""


def choose(
    nodes: Iterable[NodeRecord],
    now: datetime.datetime,
    idle: Mapping[str, Idle],
    last_pass: Mapping[str, datetime.datetime],
    *,
    share: float,
    after: datetime.timedelta = datetime.timedelta(0),
    leased: Collection[str] = (),
    barred: Callable[[NodeRecord], str] = nothing_bars,
) -> Choice:
    """The nodes to test again now.

    ``idle``: by node, from the backend (missing: not idle), ``last_pass`` when each last passed (none: never, the
    stalest of all). At most ``share`` of the nodes in service (0 to 1; at least one node) are out for this at a time,
    those that are being revalidated already or held by a run included. A pass within ``after`` is fresh enough.
    ``barred`` gives the reason why a circuit breaker keeps a node from being tested now, or "".
    """
    fleet = [node for node in nodes if node.state in SERVING]
    out = sum(node.state is State.REVALIDATION or node.name in leased for node in fleet)
    room = max(0, max(1, math.floor(len(fleet) * share)) - out)
    passed_over: dict[str, str] = {}
    ready: list[NodeRecord] = []
    for node in fleet:
        why = _why_not(node, now, idle, last_pass, after, leased) or barred(node)
        if why:
            passed_over[node.name] = why
        else:
            ready.append(node)
    ready.sort(key=lambda node: (last_pass.get(node.name, NEVER), node.name))
    full = f"{out + len(ready[:room])} of {len(fleet)} nodes are out already, and no more may be at a time"
    passed_over |= {node.name: full for node in ready[room:]}
    return Choice(tuple(node.name for node in ready[:room]), passed_over)


def _why_not(
    node: NodeRecord,
    now: datetime.datetime,
    idle: Mapping[str, Idle],
    last_pass: Mapping[str, datetime.datetime],
    after: datetime.timedelta,
    leased: Collection[str],
) -> str:
    if node.name in leased:
        return "a run holds it"
    if node.state is State.REVALIDATION:
        return "it is being revalidated"
    state = idle.get(node.name)
    if state is None:
        return "nobody can say whether it is idle"
    if not state.idle:
        return state.why or "it is in use"
    passed = last_pass.get(node.name)
    if passed is not None and now - passed < after:
        return f"it passed on {passed:%Y-%m-%d %H:%M} UTC, which is fresh enough"
    return ""
