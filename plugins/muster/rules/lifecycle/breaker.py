"""The circuit breaker: limits how many nodes tests withdraw, since a fault of the tests may fail many.

Pure. Counts the nodes that left service in a sliding window without a person's decision. At the limit, verdicts that
would withdraw another one are held for a person. First qualifications never count: those nodes do not serve yet.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Collection, Iterable

from muster.model.breaker import Breaker
from muster.model.events import Event
from muster.model.states import SERVING
from muster.rules.lifecycle.decisions import is_person


@dataclasses.dataclass(frozen=True)
class Limits:
    """The withdrawals allowed in ``window``: at most ``share`` (0 to 1) of the fleet, and at most ``nodes``.

    Fleets smaller than ``fleet`` nodes have no breaker: one broken node of four would open it.
    """

    window: datetime.timedelta
    share: float
    nodes: int
    fleet: int


def withdrawals(events: Iterable[Event], now: datetime.datetime, window: datetime.timedelta) -> tuple[str, ...]:
    """Returns the names of nodes that left service within ``window`` before ``now`` without a person's decision.

    A node counts once, also after it has returned.
    """
    return tuple(
        sorted(
            {
                event.node
                for event in events
                if now - window < event.at <= now
                and event.from_state in SERVING
                and event.to_state not in SERVING
                and not is_person(event.evidence.get("person"))
            }
        )
    )


def state(events: Iterable[Event], in_service: Collection[str], now: datetime.datetime, limits: Limits) -> Breaker:
    """Returns the breaker of a fleet with these lifecycle events. ``in_service``: nodes in service now."""
    withdrawn = withdrawals(events, now, limits.window)
    fleet = len({*in_service, *withdrawn})
    allowed = min(math.floor(fleet * limits.share), limits.nodes) if fleet >= limits.fleet else None
    return Breaker(withdrawn, fleet, allowed, limits.window, limits.fleet)
