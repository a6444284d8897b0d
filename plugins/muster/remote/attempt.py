"""What an attempt at a stage means: which job it belongs to, what its end says about the node, what comes next. Pure.

Knows no Airflow, no SSH and no database.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Iterable

from muster.records import JobRecord
from muster.remote.jobs import Look, State
from muster_criteria.measured import BadResult, StageResult, parse_result
from muster_criteria.model import Evidence, Verdict
from muster_criteria.sku_files.programme import CallSpec
from muster_node.contract import EXIT_BAD_PLAN, EXIT_NO_RESULT, Plan, ProbeCall

# States of a job in the records.
SUBMITTED = "submitted"
RUNNING = "running"
FINAL = "final"  # judged, and not INCONCLUSIVE
INCONCLUSIVE = "inconclusive"
REPEAT = "repeat"  # judged, and some of its probes are to be run once more
LOST = "lost"
STOPPED = "stopped"
KEPT = frozenset({SUBMITTED, RUNNING, FINAL})
"""A retry comes back to a job in one of these; after any other end it measures anew."""


_REPEATED = "r"


class Kind(enum.StrEnum):
    """How a job ended, as far as the controller can tell."""

    DONE = "done"
    REBOOTED = "rebooted"
    VANISHED = "vanished"
    OVERDUE = "overdue"
    LOST = "lost"
    REFUSED = "refused"


class Next(enum.StrEnum):
    """What a task does after its stage was judged."""

    GO_ON = "go on"
    FAIL = "fail"
    RETRY = "retry"
    REPEAT = "repeat"


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of a job: its kind, and one sentence about it."""

    kind: Kind
    sentence: str


def generation(max_tries: int, latest: JobRecord | None) -> str:
    """Which job an attempt belongs to, as "max_tries.measured_anew", or "max_tries.measured_anewrN" for repeat N of it.

    A retry leaves Airflow's ``max_tries`` alone, and so comes back to the job that a dead worker left behind; a user's
    Clear raises it. A retry after an INCONCLUSIVE verdict measures anew; a repeat runs again what was asked for alone.
    """
    if latest is None:
        return f"{max_tries}.0"
    tries, _, anew = latest.attempt_key.partition(".")
    if tries != str(max_tries):
        return f"{max_tries}.0"
    if latest.state in KEPT:
        return latest.attempt_key
    whole, _, repeat = anew.partition(_REPEATED)
    if latest.state == REPEAT:
        return f"{max_tries}.{whole}{_REPEATED}{int(repeat or 0) + 1}"
    return f"{max_tries}.{int(whole) + 1}"


def repeated(generation: str) -> str | None:
    """The generation of which a job of ``generation`` repeats some probes; None for one that runs the whole stage."""
    whole, _, repeat = generation.partition(_REPEATED)
    if not repeat:
        return None
    return whole if int(repeat) == 1 else f"{whole}{_REPEATED}{int(repeat) - 1}"


def seed(key: str) -> int:
    """The seed of a job's data: fresh for each job, the same again for the same job."""
    return int(hashlib.sha256(key.encode()).hexdigest()[:8], 16)


def plan(
    *,
    key: str,
    node: str,
    stage: str,
    level: str,
    fence: int,
    deadline_s: float,
    calls: Iterable[CallSpec],
    force_reason: str | None,
) -> Plan:
    """The plan that goes to the node."""
    probes = tuple(
        ProbeCall(probe=call.probe, timeout_s=call.timeout_s, seed=call.seed, params=dict(call.params))
        for call in calls
    )
    return Plan(key, node, stage, level, fence, deadline_s, probes, force_reason=force_reason)


def ended(seen: Look, hint: Kind) -> Ended | None:
    """How the job ended, by a fresh look at the node; ``hint`` is what the trigger saw. None: it is still at work."""
    if seen.state is State.DONE:
        if seen.exit_code in (EXIT_BAD_PLAN, EXIT_NO_RESULT):
            what = "could not use its plan" if seen.exit_code == EXIT_BAD_PLAN else "could not write a result"
            return Ended(
                Kind.DONE, f"the node side {what} (exit status {seen.exit_code}); its last words are in the log"
            )
        return Ended(Kind.DONE, f"the node side ended with exit status {seen.exit_code} and left no result")
    if seen.state is State.REBOOTED:
        return Ended(Kind.REBOOTED, "the machine rebooted by itself while it was tested")
    if seen.state is State.RUNNING:
        if hint is Kind.OVERDUE:
            return Ended(Kind.OVERDUE, "the node side was still at work after its deadline and was stopped")
        return None
    return Ended(Kind.VANISHED, "the node side's process vanished without a result; was it killed, out of memory?")


def checked_result(raw: bytes | None, expected: Plan) -> tuple[StageResult | None, str]:
    """The result if it can be used and is this plan's, else None and the sentence why not ("" if there is none)."""
    if raw is None:
        return None, ""
    try:
        result = parse_result(raw)
    except BadResult as error:
        return None, str(error)
    for name in ("job_id", "node", "stage", "level", "fence"):
        if getattr(result, name) != getattr(expected, name):
            return None, f"the node sent a result of another job: its {name} is {getattr(result, name)!r}"[:300]
    return result, ""


def evidence(kind: Kind, *, stage: str, loads: bool, losses: int, neighbours: str) -> tuple[Evidence, ...]:
    """What the controller established about the node by the job's end.

    ``losses`` counts the jobs of this run that were lost under load, this one included; ``neighbours`` names nodes that
    answered meanwhile, and is empty if none did: then the network may have been away, and nothing is established.
    """
    if kind is Kind.REBOOTED and loads:
        return (
            Evidence("uncommanded_reboot", f"the machine rebooted by itself during {stage}, which nobody asked for"),
        )
    if kind is Kind.LOST and loads and losses >= 2 and neighbours:
        sentence = f"the machine went away under load {losses} times in this run, while {neighbours} stayed reachable"
        return (Evidence("lost_under_load_twice", sentence),)
    return ()


def state_after(kind: Kind, verdict: Verdict, *, repeat: bool = False) -> str:
    """The state in which a judged job stands in the records."""
    if kind is Kind.LOST:
        return LOST
    if repeat:
        return REPEAT
    return INCONCLUSIVE if verdict is Verdict.INCONCLUSIVE else FINAL


def whats_next(verdict: Verdict, job_end: str, last_attempt: bool, *, repeat: bool = False) -> Next:
    """Whether the task goes on, fails for good, repeats some of its probes, or is tried again.

    ``job_end`` is the result's own word for its end.
    """
    if verdict is Verdict.FAIL:
        return Next.FAIL
    if repeat:
        return Next.REPEAT
    if verdict is not Verdict.INCONCLUSIVE:
        return Next.GO_ON
    return Next.FAIL if last_attempt or job_end == "fenced" else Next.RETRY


def stopped_by(earlier: Iterable[tuple[str, Verdict | None, bool]]) -> str:
    """Why a stage does not run after these earlier ones (stage, verdict, blocking): a sentence, or "" if it does."""
    for stage, verdict, blocking in earlier:
        if verdict is None:
            return f"not run: {stage} has no verdict in this run; somebody stopped it, or it could not be judged"
        if verdict is Verdict.FAIL and blocking:
            return f"not run: {stage} failed, and nothing more is burnt on a node that is broken already"
        if verdict is Verdict.INCONCLUSIVE:
            return f"not run: {stage} stayed inconclusive, so this run cannot qualify the node any more"
    return ""
