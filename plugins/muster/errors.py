"""Errors that a user can resolve: the text of each is one sentence that says what, where and what to do.

The command line prints a MusterError and exits 1; tasks let it become the task's failure. Anything else is a bug.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from muster_criteria.text import one_line, refusal

if TYPE_CHECKING:
    import pydantic

log = logging.getLogger(__name__)


class MusterError(Exception):
    """An error that a user can resolve; ``str(error)`` is the sentence to show, in one line whatever it quotes."""

    def __init__(self, sentence: str = "") -> None:
        super().__init__(one_line(sentence))


INTERRUPTED = 130
"""The exit status of a command that a person interrupted."""


class Interrupted(MusterError):
    """A person interrupted the command."""


class BadSettings(MusterError):
    """A MUSTER_* setting cannot be used."""


class ControllerFault(MusterError):
    """The controller cannot do its part (its SSH key, its disk, its records): no node is charged with it."""


class DatabaseNotReady(ControllerFault):
    """The fleet records cannot be opened, or are not at this version's schema."""


def first_line(error: Exception) -> str:
    """Returns the first line of an error, at most 200 characters."""
    return one_line(next(iter(str(error).splitlines()), type(error).__name__))[:200]


def first_refused(error: pydantic.ValidationError, whole: str = "") -> str:
    """Returns what was refused first, as "field.field: why"; if no field, "``whole``: why", or "why".

    What was given is left out: it may hold a secret.
    """
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or whole
    why = refusal(first["msg"])
    return f"{where}: {why}" if where else why


@contextlib.contextmanager
def of_sku_files() -> Iterator[None]:
    """Raise MusterError for SkuError: the user can correct a SKU file."""
    from muster_criteria.sku_files.model import SkuError

    try:
        yield
    except SkuError as error:
        raise MusterError(str(error)) from None


@contextlib.contextmanager
def apart(what: str, failed: list[str]) -> Iterator[None]:
    """Handle one of many (a node, a run, a receiver): any error becomes a sentence in ``failed``, and stops no other.

    All types of errors are caught, since those of one odd case cannot be foreseen. Only DatabaseNotReady is raised:
    records that cannot be read or written concern all.
    """
    try:
        yield
    except DatabaseNotReady:
        raise
    except MusterError as error:
        log.warning("%s: %s", what, error)
        failed.append(f"{what}: {error}")
    except Exception as error:
        log.exception("%s", what)
        failed.append(f"{what}: {first_line(error)}")


class BadNode(MusterError):
    """A node's description is malformed (its name, host key, port, …)."""


class UnknownNode(MusterError):
    """No node of that name is enrolled."""


class DifferentMachine(MusterError):
    """A known name answers with another host key or other serials; nothing was changed."""


class SameMachine(MusterError):
    """A machine that is already enrolled was to be enrolled under a second name; nothing was changed."""


class UnknownRack(MusterError):
    """No rack of that name is held."""


class NodeLeased(MusterError):
    """Another run holds the node."""


class PlaceLoaded(MusterError):
    """Another block sends over the same uplinks."""


class NodePaused(MusterError):
    """A person paused the node's tests until a day: no run may lease it to test it."""


class LeaseLost(MusterError):
    """The run does not hold the node (any more), so it may change nothing about it."""


class Refusal(enum.StrEnum):
    """Why a node is not moved or changed."""

    NO_SUCH_MOVE = "no_such_move"
    """The lifecycle has no transition between these states."""
    EVIDENCE = "evidence"
    """What the transition needs is not there."""
    SHADOW = "shadow"
    """Only a person moves a node in shadow mode."""
    GATE = "gate"
    """The gate to production refuses the node, or asks for a person."""
    PERSON = "person"
    """A named person with a reason is needed."""
    STATE = "state"
    """It is not done in the node's state."""
    LEASED = "leased"
    FAILED = "failed"
    """The machine failed a run."""
    NOTHING_HELD = "nothing_held"
    ANOTHER_RUN = "another_run"
    """The records hold another run of this id, or one of another machine."""
    OUTDATED = "outdated"
    """The question is about an earlier state of the node than the records hold now."""
    UNANSWERED = "unanswered"
    """No answer of a person is recorded for the question."""
    RACK_HELD = "rack_held"
    NOT_PAUSED = "not_paused"
    NOT_MARKED = "not_marked"
    NOT_PROVISIONAL = "not_provisional"
    WAIVERS_CHANGED = "waivers_changed"
    BREAKER = "breaker"
    """The circuit breaker holds it: a person decides."""
    TOGETHER = "together"
    """As many nodes are under repair as the policy allows at a time."""
    BY_EVENT = "by_event"
    """An event changes no node."""


class IllegalMove(MusterError):
    """The lifecycle has no such transition, or what it needs is not there; ``code`` says which."""

    def __init__(self, sentence: str, code: Refusal) -> None:
        super().__init__(sentence)
        self.code = code


class NoPerson(IllegalMove):
    """A decision came without a named person or without a reason; nothing was changed."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, Refusal.PERSON)


class UnknownRun(MusterError):
    """No run of that id is recorded."""


class UnknownSnapshot(MusterError):
    """No such peer statistics are kept, or they cannot be read."""


class UnknownRevision(MusterError):
    """No such revision of a SKU is kept, or it cannot be read."""


class UnknownFinding(MusterError):
    """No finding of that id is recorded."""


class UnknownIncident(MusterError):
    """No incident of that number is recorded."""


class UnknownGolden(MusterError):
    """No golden of that id is current, and no digest of it is recorded."""


class BadDay(MusterError):
    """The last day of a decision is no date, or that of a pause is over already; nothing was changed."""


class BadWaiver(MusterError):
    """A waiver cannot be given or revoked like this; nothing was changed."""


class BadInventory(MusterError):
    """An inventory has bad lines; ``problems`` has one sentence for each, and nothing was changed."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(one_line(problem) for problem in problems)
        Exception.__init__(self, "\n".join(self.problems))


class BadBackup(MusterError):
    """A back-up cannot be written or read, or there is no place to restore it to."""


class BadCertificate(MusterError):
    """A certificate is malformed, altered, expired, or of another key."""


class BadScheduler(MusterError):
    """A node's scheduler cannot be used like this: unknown cluster, unknown or taken name there, wrong settings."""


class SchedulerDown(MusterError):
    """A scheduler does not answer in time, refuses, or did not do what it confirmed: the change waits."""


class LeftAlone(MusterError):
    """A change waits, since somebody else's drain or state of the node stands in the scheduler."""


class NeverClosed(LeftAlone):
    """A test would have to close the node, which is in shadow mode: unlike a job of a user, this does not end."""


class Preempted(MusterError):
    """The test was a job of the scheduler, which took the node back for a user's job."""


class JobEnded(MusterError):
    """The test was a job of the scheduler, and it ended for another reason than a user's job: the node, or a person."""


class Overtaken(MusterError):
    """A later try of the task has judged the attempt, which this process had yet to start: its supervisor is gone."""


class AirflowUnreachable(MusterError):
    """Airflow's API server does not answer."""


class AirflowRefused(MusterError):
    """Airflow refused the request: wrong login, missing permission, unknown DAG, bad parameters."""


class AlreadyTriggered(MusterError):
    """A run of this node for this reason exists already."""


def at(where: str, sentence: object) -> str:
    """Returns a sentence, after the place that it is about ("fleet.yaml:12") if there is one."""
    return f"{where}: {sentence}" if where else str(sentence)
