"""The circuit breaker: limits how many nodes tests withdraw, since a fault of the tests may fail many.

Pure. Counts the nodes that left service in a sliding window without a person's decision. At the limit, verdicts that
would withdraw another one are held for a person. First qualifications never count: those nodes do not serve yet.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from muster.rules.transitions import SERVING, is_person

if TYPE_CHECKING:
    from muster.store import EventRecord


@dataclasses.dataclass(frozen=True)
class Limits:
    """The withdrawals allowed in ``window``: at most ``share`` (0 to 1) of the fleet, and at most ``nodes``.

    Fleets smaller than ``fleet`` nodes have no breaker: one broken node of four would open it.
    """

    window: datetime.timedelta
    share: float
    nodes: int
    fleet: int


@dataclasses.dataclass(frozen=True)
class Breaker:
    """The breaker's state. ``withdrawn``: the nodes taken out of service in the window; ``fleet``: how many there
    were with them; ``allowed``: how many may be out, None in a fleet too small for a breaker (of ``least`` and more).
    """

    withdrawn: tuple[str, ...]
    fleet: int
    allowed: int | None
    window: datetime.timedelta
    least: int

    @property
    def open(self) -> bool:
        """Whether the next verdict that would withdraw a node is held."""
        return self.allowed is not None and len(self.withdrawn) >= self.allowed

    @property
    def sentence(self) -> str:
        """The breaker's state in one sentence."""
        hours = f"{self.window.total_seconds() / 3600:g} hours"
        if self.allowed is None:
            # One broken node of a few would open it.
            return f"it acts in fleets of {self.least} nodes in service or more, and {self.fleet} are in service"
        counted = f"{len(self.withdrawn)} of {self.fleet} nodes were withdrawn from production in the last {hours}"
        if self.open:
            return f"{counted}, and at most {self.allowed} may be"
        return f"{counted}, and {self.allowed} may be"

    @property
    def state(self) -> str:
        """ "open", "closed", or "inactive" in a fleet too small for it to act."""
        return "inactive" if self.allowed is None else "open" if self.open else "closed"

    @property
    def why(self) -> str:
        """Why a verdict is held, or an idle node not tested; "" while the breaker is closed."""
        return f"the circuit breaker is open: {self.sentence}" if self.open else ""


def withdrawals(events: Iterable[EventRecord], now: datetime.datetime, window: datetime.timedelta) -> tuple[str, ...]:
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


def state(
    events: Iterable[EventRecord], in_service: Collection[str], now: datetime.datetime, limits: Limits
) -> Breaker:
    """Returns the breaker of a fleet with these lifecycle events. ``in_service``: nodes in service now."""
    withdrawn = withdrawals(events, now, limits.window)
    fleet = len({*in_service, *withdrawn})
    allowed = min(math.floor(fleet * limits.share), limits.nodes) if fleet >= limits.fleet else None
    return Breaker(withdrawn, fleet, allowed, limits.window, limits.fleet)
