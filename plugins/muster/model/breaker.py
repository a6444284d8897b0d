"""The state of the circuit breaker, which limits how many nodes verdicts withdraw."""

from __future__ import annotations

import dataclasses
import datetime


@dataclasses.dataclass(frozen=True)
class Breaker:
    """The breaker's state. ``withdrawn``: the nodes taken out of service in the window; ``fleet``: how many there were
    with them; ``allowed``: how many may be out, None in a fleet of fewer than ``least`` nodes.
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
            fleet = f"{self.fleet} with those withdrawn in the last {hours}"
            return f"it acts in fleets of {self.least} nodes in service or more, and this one has {fleet}"
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
