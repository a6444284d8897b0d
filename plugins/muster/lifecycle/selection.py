"""Selects the idle production nodes to test now: the stalest first, at most a share of the fleet. Pure.

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
    """Whether a node is in service and unused; ``why``: the reason if not."""

    idle: bool
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Choice:
    """``chosen``: stalest first. ``passed_over``: by node, why each other production node is not tested."""

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
    """Returns the nodes to test now.

    ``idle``: by node, from the backend (missing: not idle). ``last_pass``: by node, the time of its last PASS (missing:
    never, the stalest). At most ``share`` (0 to 1) of the nodes in service, and at least one, are tested at a time,
    including those in revalidation or held by a run. A PASS within ``after`` is fresh enough. ``barred``: returns why
    the circuit breaker keeps a node in production, or "".
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
    full = f"{out + len(ready[:room])} of {len(fleet)} nodes are being tested, which is the limit"
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
        return "the backend does not know whether it is idle"
    if not state.idle:
        return state.why or "it is in use"
    passed = last_pass.get(node.name)
    if passed is not None and now - passed < after:
        return f"it passed on {passed:%Y-%m-%d %H:%M} UTC, which is fresh enough"
    return ""
