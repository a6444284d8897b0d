"""A node's place on its scheduler: what is wanted there, and what was confirmed."""

from __future__ import annotations

import dataclasses
import datetime

from muster.model.states import State

ADMITTED, WITHDRAWN, LEFT_ALONE = "admitted", "withdrawn", ""
OPEN, CLOSED = "open", "closed by Muster"
"""How a scheduler shows a node that is open, and one that Muster closed."""
ABSENT = "not at all"
"""How a scheduler shows a node that it does not know."""
REPEATED = "confirmed once more"
"""Why an admission is carried out again although its scheduler has not closed the node since."""


@dataclasses.dataclass(frozen=True)
class UsersJob:
    """A user's job on a node, as its scheduler lists it. ``node``: its name there; ``what``: "job 4711 of alice".

    ``until``: when it ended, None while it runs.
    """

    node: str
    what: str
    since: datetime.datetime
    until: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True)
class Place:
    """As ``muster.store.database.outgoing.PlaceRow`` has it; ``state``: the node's."""

    node: str
    cluster: str
    name: str
    state: State
    wanted: str
    why: str
    wanted_at: datetime.datetime
    done: str
    attempts: int
    last_error: str
    difference: str
    question: str
    verify: str
    test_job: str = ""
    preempted: bool = False
    done_at: datetime.datetime | None = None
    verify_since: datetime.datetime | None = None
    shown: str = ""
    shown_since: datetime.datetime | None = None
    done_why: str = ""
    lifted: str = ""
    held_since: datetime.datetime | None = None

    @property
    def waits(self) -> bool:
        """Whether a change is still to be carried out."""
        return self.wanted != self.done and bool(self.wanted)

    @property
    def known(self) -> bool:
        """Whether its scheduler knew the node when it was last asked."""
        return self.shown not in ("", ABSENT)

    @property
    def held(self) -> str:
        """Why only a test that began since, or a person, opens it; "" if nothing holds it."""
        if self.held_since is None:
            return ""
        return f"the records were restored on {self.held_since:%Y-%m-%d %H:%M} UTC, and may lack what was found before"

    @property
    def admitted(self) -> bool:
        """Whether the scheduler has confirmed that it allocates the node."""
        return self.wanted == self.done == ADMITTED
