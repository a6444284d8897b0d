"""Asks schedulers about nodes that restart or do not answer: if others may be the cause, the nodes are not at fault."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import NamedTuple

from muster import store
from muster.admission.backend import Seen
from muster.admission.service import look
from muster.rules.idle.selection import Idle

_LAST = 50
"""Events of a node that are searched for what its scheduler showed during one job."""


class Silence(NamedTuple):
    """``away``: nodes whose silence says nothing about them, since others may be working on them or their scheduler
    does not answer either. ``down``: nodes that are down in their scheduler, and that no person or program closed.
    """

    away: frozenset[str]
    down: frozenset[str]


def silence(nodes: Collection[str]) -> Silence:
    """Returns what their schedulers say about nodes that may not answer."""
    away, seen = _excused(nodes)
    down = {name for name, each in seen.items() if each.apart and not (each.in_hand or each.kept)} - away.keys()
    return Silence(frozenset(away), frozenset(down))


def explained(node: str, since: datetime.datetime) -> str:
    """Returns why a restart or loss of the node since ``since`` is not its own fault; "" if nothing explains it.

    It is explained if its scheduler shows, or showed since then, that others work on it, or does not answer either.
    That somebody closed the node explains nothing: people, programs and the scheduler close a node because it crashed.
    """
    away, _ = _excused([node])
    if why := away.get(node):
        return why
    # A scheduler may forget what it did with a node once the node is up again.
    events = store.nodes.events(node, _LAST)
    return next((each.reason for each in reversed(events) if each.at >= since and each.evidence.get("worked_on")), "")


def _excused(nodes: Collection[str]) -> tuple[dict[str, str], dict[str, Seen]]:
    """Returns (why the silence of each such node says nothing of it, the nodes as their schedulers show them)."""
    unanswered: dict[str, Idle] = {}
    seen = look(nodes, unanswered, jobs=False)
    shown = {name: f"its scheduler shows it {each.worked_on}" for name, each in seen.items() if each.worked_on}
    places = store.schedulers.places_of([name for name in nodes if name not in seen]).values()
    removed = [place.node for place in places if place.node not in unanswered and place.known]
    shown |= dict.fromkeys(removed, "its scheduler does not know it any more")
    return shown | dict.fromkeys(unanswered, "its scheduler does not answer"), seen
