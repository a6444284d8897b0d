"""The consequences of a job's end for its node, its task and the later stages. Pure."""

from __future__ import annotations

import dataclasses
import enum
import signal
from collections.abc import Iterable

from muster.model.runs import Job
from muster.remote.job.attempt_key import AttemptKey
from muster.remote.job.jobs import Look, State
from muster_criteria.model import Evidence, Verdict
from muster_node.contract import EXIT_BAD_PLAN, EXIT_NO_RESULT

# States of a job in the records.
SUBMITTED = "submitted"
RUNNING = "running"
FINAL = "final"  # judged, and not INCONCLUSIVE
INCONCLUSIVE = "inconclusive"
REPEAT = "repeat"  # judged, and some of its probes are to run again
LOST = "lost"
UNSEEN = "unseen"  # judged without a result as the last attempt, since the node could not be reached: it may still run
STOPPED = "stopped"
JUDGED = frozenset({FINAL, UNSEEN})
"""No other attempt of the same tries follows a job in one of these states."""
KEPT = frozenset({SUBMITTED, RUNNING}) | JUDGED
"""A retry returns to a job in one of these states."""
UNJUDGED = frozenset({SUBMITTED, RUNNING})
"""Only a job in one of these states may be started on its node."""


class Kind(enum.StrEnum):
    """How a job ended, as seen by the controller.

    ``LOST``: the node could not be reached until long after the deadline. ``REFUSED``: it refused the login or the host
    key, or could not be used. ``UNABLE``: the controller could not log in, for a fault of its own. ``EXPLAINED``: it
    rebooted or was lost, and others may be the cause.
    """

    DONE = "done"
    REBOOTED = "rebooted"
    VANISHED = "vanished"
    OVERDUE = "overdue"
    LOST = "lost"
    REFUSED = "refused"
    UNABLE = "unable"
    EXPLAINED = "explained"


ACCUSING = frozenset({Kind.REBOOTED, Kind.LOST})
"""Ends that become evidence about the node unless others may have caused them."""


class Next(enum.StrEnum):
    """The next step of a task after its stage was judged."""

    GO_ON = "go on"
    FAIL = "fail"
    RETRY = "retry"
    REPEAT = "repeat"


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of a job: its kind and a message."""

    kind: Kind
    sentence: str


def next_attempt(max_tries: int, latest: Job | None) -> AttemptKey:
    """Returns the attempt to make now: that of the latest job if it can be used, else a new one.

    A retry uses the job that a dead worker left. After an INCONCLUSIVE verdict it measures again; a repeat
    runs only the probes that the judge requested.
    """
    if latest is None:
        return AttemptKey(max_tries)
    key = AttemptKey.parse(latest.attempt_key)
    if key.tries != max_tries:
        return AttemptKey(max_tries)
    if latest.state in KEPT:
        return key
    return key.repeated() if latest.state == REPEAT else AttemptKey(key.tries, key.measurement + 1)


def ended(seen: Look, *, overdue: bool = False, boot_id: str = "") -> Ended | None:
    """Returns how the job ended, from the node's current state; None if it still runs and is not ``overdue``.

    ``boot_id``: the node's when the job was started. A node without a disk forgets the job when it reboots.
    """
    other_boot = bool(boot_id and seen.boot_id and boot_id != seen.boot_id)
    if seen.orderly and (seen.state is State.REBOOTED or (other_boot and seen.state is not State.RUNNING)):
        return explained(Kind.REBOOTED, "it was rebooted by an administrator or a daemon, by an orderly shutdown")
    if seen.state is State.DONE:
        if seen.exit_code in (EXIT_BAD_PLAN, EXIT_NO_RESULT):
            what = "could not use its plan" if seen.exit_code == EXIT_BAD_PLAN else "could not write a result"
            return Ended(
                Kind.DONE,
                f"the node side {what} (exit status {seen.exit_code}); see the task's log",
            )
        how = f"exit status {seen.exit_code}{_signal(seen.exit_code)}"
        return Ended(Kind.DONE, f"the node side ended with {how} and left no result")
    gone = seen.state in (State.ABSENT, State.GONE)
    if seen.state is State.REBOOTED or (gone and other_boot):
        return Ended(Kind.REBOOTED, "the machine rebooted by itself while it was tested")
    if seen.state is State.RUNNING:
        if overdue:
            return Ended(Kind.OVERDUE, "the node side was still running after its deadline and was stopped")
        return None
    return Ended(
        Kind.VANISHED,
        "the node side's process ended without a result; it may have run out of memory, or systemd-logind ended it "
        "with its login (KillUserProcesses)",
    )


def _signal(exit_code: int | None) -> str:
    """Which signal ended a process, as a shell writes it in an exit status; "" for none."""
    try:
        name = signal.Signals((exit_code or 0) - 128).name
    except ValueError:
        return ""
    why = ": it may have run out of memory, or a program of the site ended it" if name == "SIGKILL" else ""
    return f" ({name}{why})"


def explained(kind: Kind, why: str) -> Ended:
    """Returns the end of a job whose node rebooted or was lost, perhaps through others: no evidence about the node."""
    what = "rebooted" if kind is Kind.REBOOTED else "was lost"
    return Ended(Kind.EXPLAINED, f"the machine {what} while it was tested, which says nothing of it: {why}")


def evidence(kind: Kind, *, job: str, stage: str, loads: bool, losses: int, neighbours: str) -> tuple[Evidence, ...]:
    """Returns the controller's own evidence about the node from the end of the job of that name.

    ``losses``: number of jobs of this run that were lost under load, this one included. ``neighbours``: names of nodes
    that responded meanwhile; if empty, the network may have been down, which is no evidence about the node.
    """
    if kind is Kind.REBOOTED and loads:
        return (Evidence("uncommanded_reboot", f"the machine rebooted by itself during {stage}", incident=job),)
    if kind is Kind.LOST and loads and losses >= 2 and neighbours:
        sentence = f"the machine was lost under load {losses} times in this run, while {neighbours} stayed reachable"
        return (Evidence("lost_under_load_twice", sentence, incident=job),)
    return ()


def final(kind: Kind) -> str:
    """Returns the state to record for a job that no other follows."""
    return {Kind.LOST: LOST, Kind.REFUSED: UNSEEN}.get(kind, FINAL)


def state_after(kind: Kind, verdict: Verdict, *, repeat: bool = False) -> str:
    """Returns the state to record for a judged job."""
    if final(kind) == FINAL:
        if repeat:
            return REPEAT
        if verdict is Verdict.INCONCLUSIVE:
            return INCONCLUSIVE
    return final(kind)


def whats_next(verdict: Verdict, job_end: str, last_attempt: bool, *, repeat: bool = False) -> Next:
    """Returns whether the task succeeds, fails, repeats some probes, or is retried.

    ``job_end``: ``StageResult.end``, "" without a result.
    """
    if verdict is Verdict.FAIL:
        return Next.FAIL
    if repeat:
        return Next.REPEAT
    if verdict is not Verdict.INCONCLUSIVE:
        return Next.GO_ON
    return Next.FAIL if last_attempt or job_end == "fenced" else Next.RETRY


def stopped_by(earlier: Iterable[tuple[str, Verdict | None, bool]]) -> str:
    """Returns why a stage does not run after these earlier (stage, verdict, blocking); "" if it runs."""
    for stage, verdict, blocking in earlier:
        if verdict is None:
            return f"not run: {stage} has no verdict in this run; it was stopped, or could not be judged"
        if verdict is Verdict.FAIL and blocking:
            return f"not run: {stage} failed, and a node that failed it is not loaded further"
        if verdict is Verdict.INCONCLUSIVE:
            return f"not run: {stage} stayed inconclusive, so this run can no longer qualify the node"
    return ""
