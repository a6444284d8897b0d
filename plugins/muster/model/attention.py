"""What a node that does not serve waits for, and who acts next."""

from __future__ import annotations

import dataclasses
import datetime
import enum

from muster.model.states import State


class Turn(enum.StrEnum):
    """Who acts next."""

    PERSON = "person"
    VENDOR = "vendor"
    SCHEDULER = "scheduler"
    """The person or program that closed the node there, or the scheduler itself, once it answers."""
    MUSTER = "muster"


class Cause(enum.StrEnum):
    """Why a node does not serve, or why somebody decides about one that serves; the most urgent first."""

    HELD = "held"
    """A verdict that would withdraw it is held."""
    QUESTION = "question"
    QUARANTINE = "quarantine"
    TRIAGE = "triage"
    DIFFERS = "differs"
    """Its scheduler shows it otherwise than the records want it, or not at all."""
    NOT_CONFIRMED = "not confirmed"
    """A change waits for its scheduler."""
    CLOSED = "closed"
    """In production, and closed or out of order in its scheduler."""
    LEAVES = "to leave service"
    """It serves, and leaves with the next sweep, or once the circuit breaker lets it."""
    UNVERIFIED = "unverified"
    """It was adopted in service, and no test has verified it: in shadow mode it serves whatever is found."""
    FALLEN = "fallen"
    """Its test found something in service, and it left production."""
    BLOCK_DECIDED = "after a block"
    """It was tested in a block and did not enter production, and no person is asked."""
    RACK = "rack"
    """The NVLink domain of its rack needs a person, once for all its nodes."""
    REPLACES = "replaces"
    """It may take the place of a node that left production."""
    WAITS_FOR_BLOCK = "waits for a block"
    PROVISIONAL = "provisional"
    INCONCLUSIVE = "inconclusive"
    NOT_TESTED = "not tested"
    NO_VERDICT = "no verdict"
    """It serves, or waits to serve again, and its tests give no verdict."""
    REPAIR = "repair"
    IN_REPAIR = "in repair"
    """A run of the DAG repair has it."""
    WAITS_FOR_REPAIR = "waits for repair"
    """Its repair begins by itself, once there is room for it or the node is free."""
    RMA = "rma"
    RETRIED = "tried again"
    """Its run could not reach it, and tries again by itself."""
    IN_TEST = "in test"
    TEST_DUE = "test due"
    """It is tested next, by itself."""
    SPARE = "spare"
    """It passed, and is kept to replace a node that leaves production."""


@dataclasses.dataclass(frozen=True)
class Attention:
    """One node that does not serve, or about which somebody decides.

    ``why``: in the words of the person or program that took it out. ``until``: when the wait ends by itself; None:
    never. ``command``: the next command for the one whose ``turn`` it is. ``serving``: users' jobs may run on it.
    ``late``: it is Muster's turn, and has been for so long that a person has to look.
    """

    node: str
    state: State
    cause: Cause
    since: datetime.datetime | None
    why: str
    turn: Turn
    command: str
    until: datetime.datetime | None = None
    serving: bool = False
    simulated: bool = False
    late: bool = False

    @property
    def listed(self) -> bool:
        """Whether people see it in a line of its own: not if Muster ends it by itself and nothing is in the way."""
        return self.turn is not Turn.MUSTER or self.cause in (Cause.LEAVES, Cause.RETRIED) or self.late

    @property
    def waits_for_muster(self) -> bool:
        """Whether Muster ends it by itself, as soon as it can. A test under way has limits of its own, by the alerts
        MusterTestStuck and MusterNewNodesStuck, and a spare has none.
        """
        return self.turn is Turn.MUSTER and self.cause not in (Cause.IN_TEST, Cause.SPARE)
