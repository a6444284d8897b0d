"""What is done next about a fault: the next rung of its ladder, or a person. Pure.

The caller asks the scheduler immediately before the act whether the node is in use, and passes ``Situation.idle``. What
is unknown is never taken as allowed: an attempt of unknown outcome counts as carried out, a history that cannot be read
stops, and a rung that is not switched on is not skipped.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Iterable, Mapping, Sequence

from muster.model.names import OWNER_LABEL
from muster.model.repairs import Attempt, Fault, Incident, Outcome
from muster.model.runs import StageVerdict
from muster.model.states import State
from muster_criteria.model import Verdict
from muster_criteria.repair.ladder import RESTARTS, Ladder, RepairPolicy, Rung, Together
from muster_criteria.stages import LEVELS

REPAIRABLE = (State.QUARANTINE, State.TRIAGE)
"""States in which a repair begins: out of service. A node in repair or rma is in somebody's hands already."""

SIMULATED = frozenset({Rung.RESET_GPU})
"""What the simulator can do itself; the command of any other rung would concern the machine below it."""

REFUSED_MAX = 3
"""Attempts at a fault in a row that could not be begun (the GPU in use, sudo refuses) within
``REFUSED_WITHIN``, after which a person is asked."""
REFUSED_WITHIN = datetime.timedelta(days=1)
UNTIL = ": this repair begins once tests have ended one of theirs"


@dataclasses.dataclass(frozen=True)
class Situation:
    """What is known when a repair is to be chosen.

    ``history``: the attempts on the node's machine and on the part, wherever it sat, oldest first; None if they cannot
    be read. ``idle``: whether its scheduler says that it is closed and free, None for a node that has none and takes no
    login. ``allocated``: why its scheduler does not say so. ``closed``: who else closed it, where no person ordered the
    repair, and what that person may do. ``used``: what on the node itself uses it, or why that
    cannot be read. ``paused``: by whom its tests are paused. ``leased``: whether this repair holds the node.
    ``shadow``: whether a person alone moves it. ``reachable``: whether the node takes a login. ``bmc``: whether one is
    enrolled. ``others``: the labels of the other nodes that are under repair, by name.
    """

    fault: Fault
    labels: Mapping[str, str]
    history: Sequence[Attempt] | None
    idle: bool | None
    leased: bool
    simulated: bool = False
    shadow: bool = False
    reachable: bool = True
    bmc: bool = False
    allocated: str = ""
    closed: str = ""
    used: str = ""
    paused: str = ""
    others: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Act:
    """Carry out ``rung``, then prove it by the ladder's tests."""

    rung: Rung


@dataclasses.dataclass(frozen=True)
class Person:
    """A person decides; ``why`` is a sentence, ``rung`` what the ladder would do next, if it says anything."""

    why: str
    rung: Rung | None = None


@dataclasses.dataclass(frozen=True)
class Wait:
    """Nothing is done now, and nothing is lost by asking again; ``why`` is a sentence. ``asks``: it waits for a person,
    who is asked meanwhile.
    """

    why: str
    asks: bool = False


def next_step(now: Situation, policy: RepairPolicy, at: datetime.datetime) -> Act | Person | Wait:
    """Returns what is done next about a fault."""
    ladder = policy.ladder(now.fault.fault_class)
    if ladder is None:
        return Person(f"the policy {policy.cited} has no ladder for {now.fault.fault_class}")
    if now.history is None:
        return Person("the earlier repairs cannot be read, so nothing is known of what is left to try")
    recent = [each for each in now.history if _recent(each, policy.window_days, at)]
    if any(each.ended_at is None for each in now.history):
        return Wait("another repair is under way, or its end was not recorded")
    carried_out = [each for each in recent if counts(each)]
    rung = _next_rung(ladder, carried_out, now.fault)
    lately = [each for each in recent if at - each.reserved_at <= REFUSED_WITHIN]
    if why := _over_budget(carried_out, now.fault, policy) or _barred(rung, now, policy) or _refused(lately, now.fault):
        return Person(why, rung)
    return _kept_waiting(rung, now, policy) or Act(rung)


def _barred(rung: Rung, now: Situation, policy: RepairPolicy) -> str:
    """The first reason why ``rung`` is not carried out on the node without a person, "" if there is none."""
    owner = now.labels.get(OWNER_LABEL, "").strip()
    powered = rung is Rung.POWER_CYCLE
    unnamed = rung is Rung.RESET_GPU and not now.fault.part.startswith("gpu ")
    reasons = (
        (not rung.automatic, f"what is left for {now.fault.fault_class} is {rung}"),
        (owner, f"{owner} repairs it (label {OWNER_LABEL})"),
        (powered and not now.bmc, "the next step is a power cycle, and no BMC is enrolled for the node"),
        (not powered and not now.reachable, f"the next step is {rung}, and the node takes no login"),
        (unnamed, "the next step is the reset of a GPU, and its serial number is not known"),
        (rung not in policy.allowed(now.labels), f"{rung} is not switched on for this node (policy {policy.cited})"),
        (now.simulated and rung not in SIMULATED, f"the node is simulated: {rung} would concern the machine below it"),
        (now.shadow, "the node is in shadow mode: a person alone moves it"),
    )
    return next((why for holds, why in reasons if holds), "")


def _kept_waiting(rung: Rung, now: Situation, policy: RepairPolicy) -> Person | Wait | None:
    """Why ``rung``, which is allowed, is not begun now; None if it is."""
    if not now.leased:
        return Wait("the repair does not hold the node")
    if now.paused:
        return Wait(f"its tests are {now.paused}")
    if now.idle is None and not now.reachable:
        return Person("it takes no login, and no scheduler says that it is free", rung)
    if now.idle is not True:
        return Wait(now.allocated or "whether the node is in use is not known")
    if now.closed:
        return Wait(now.closed, asks=True)
    if now.used:
        return Person(f"its scheduler calls the node free, but {now.used}", rung)
    full = no_room(now.labels, now.others, policy.together)
    return Wait(full) if full else None


def _recent(attempt: Attempt, days: float, at: datetime.datetime) -> bool:
    """Whether an attempt lies within so many days, by the clock or by the days on which tests were recorded since.

    A controller's clock that is set ahead makes everything look old. The days that it skips have no tests, so a fleet
    that is not tested each day keeps an attempt longer, and a person is asked.
    """
    return at - attempt.reserved_at <= datetime.timedelta(days=days) or attempt.days < days


def no_room(labels: Mapping[str, str], others: Mapping[str, Mapping[str, str]], limit: Together) -> str:
    """Returns why no further node may be repaired now, "" if one may. ``others``: labels of those under repair."""
    if len(others) >= limit.fleet:
        return f"{_some(others)} are under repair, and the policy allows {limit.fleet} in the fleet at a time{UNTIL}"
    for label in limit.labels:
        there = [name for name, known in others.items() if labels.get(label) and known.get(label) == labels[label]]
        if len(there) >= limit.place:
            where = f"{label} {labels[label]}"
            return f"{_some(there)} of {where} under repair, and the policy allows {limit.place} there{UNTIL}"
    return ""


def _some(names: Iterable[str]) -> str:
    known = sorted(names)
    return ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")


def _refused(lately: Sequence[Attempt], fault: Fault) -> str:
    """Returns how many of the last attempts at this fault were certainly not carried out, "" if these are few."""
    same = [each for each in lately if _same(each.fault, fault)]
    refused = sum(1 for _ in itertools.takewhile(lambda each: not counts(each), reversed(same)))
    return f"{refused} attempts in a row could not be begun" if refused >= REFUSED_MAX else ""


def counts(attempt: Attempt) -> bool:
    """Whether an attempt uses up the budget: unless it was certainly not carried out."""
    return attempt.outcome not in (Outcome.TRANSIENT, Outcome.CANCELLED, Outcome.SUPERSEDED)


def _next_rung(ladder: Ladder, carried_out: Sequence[Attempt], fault: Fault) -> Rung:
    """The mildest rung above all that were tried for this fault; the last one when all were."""
    tried = [Rung(each.rung).rank for each in carried_out if _same(each.fault, fault)]
    return next((each for each in ladder.rungs if each.rank > max(tried, default=-1)), ladder.rungs[-1])


def _over_budget(carried_out: Sequence[Attempt], fault: Fault, policy: RepairPolicy) -> str:
    restarts = [each for each in carried_out if _same(each.fault, fault) and Rung(each.rung) in RESTARTS]
    if len(restarts) >= policy.restarts_max:
        return f"{fault.fault_class} came back after {len(restarts)} restarts in {policy.window_days:g} days"
    if len(carried_out) >= policy.repairs_max:
        return f"{len(carried_out)} repairs were carried out in {policy.window_days:g} days"
    return ""


def _same(one: Fault, other: Fault) -> bool:
    """Whether two faults are the same: of one class, and of one part, or of one place where no part is known."""
    if one.fault_class != other.fault_class:
        return False
    return one.part == other.part if one.part and other.part else one.device == other.device


def proved(incident: Incident, verdicts: Iterable[tuple[int, StageVerdict]], after: int) -> bool:
    """Whether the tests since the last repair prove that the fault is gone.

    ``verdicts``: with their numbers, which grow; ``after``: the last number before the repair ended. Times do not
    count: clocks differ and jump. Every stage that can see the fault has to have passed, with full coverage, at a
    level that can see it.
    """
    if not incident.prove or incident.level not in LEVELS:
        return False  # evidence that a person took: nothing was to be repaired
    passed = {
        each.stage
        for number, each in verdicts
        if each.verdict is Verdict.PASS and each.full_coverage and number > after
        and each.level in LEVELS and LEVELS.index(each.level) >= LEVELS.index(incident.level)
    }  # fmt: skip
    return set(incident.prove) <= passed
