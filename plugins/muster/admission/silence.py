"""What schedulers say of nodes that restart or do not answer: if others may be why, it says nothing of the nodes."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import NamedTuple

from muster import store
from muster.admission.backend import Seen
from muster.admission.service import look
from muster.rules.idle.selection import Idle

_LAST = 50
"""Events of a node that are read for what its scheduler showed during one job."""


class Silence(NamedTuple):
    """``away``: nodes whose silence says nothing of them: others may be at work on them, or their scheduler is silent
    too. ``down``: nodes that are down there, and closed by no person.
    """

    away: frozenset[str]
    down: frozenset[str]


def silence(nodes: Collection[str]) -> Silence:
    """What it means that some of the nodes do not answer."""
    away, seen = _excused(nodes)
    down = {name for name, each in seen.items() if each.apart and not (each.in_hand or each.kept)} - away.keys()
    return Silence(frozenset(away), frozenset(down))


def explained(node: str, since: datetime.datetime) -> str:
    """Returns why it says nothing of a node that it restarted or was lost since then, "" if nothing explains it.

    Others are at work on it by its scheduler, or were since then; or its scheduler is silent too. That somebody has
    closed it does not: people, programs and the scheduler itself close a node because it crashed.
    """
    away, _ = _excused([node])
    if why := away.get(node):
        return why
    # A scheduler may forget what it did with a node once that is up again.
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
