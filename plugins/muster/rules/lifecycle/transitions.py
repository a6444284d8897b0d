"""The node's life cycle: its states, and the table of all transitions with their requirements.

Pure, without database and Airflow. Only ``muster.store`` writes a state, after ``check_move``.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable, Mapping

from muster.errors import IllegalMove, Refusal
from muster.model.events import Evidence
from muster.model.stages import STAGES
from muster.model.states import BROKEN, IN_FLIGHT, SERVING, STATE_OF_STAGE, State
from muster.rules.lifecycle.decisions import is_person
from muster_criteria.model import Verdict

INCONCLUSIVE_BUDGET = 3
"""Number of consecutive inconclusive runs after which a person decides (docs/failed-node.md)."""


class Need(enum.Enum):
    """A requirement of a transition; the value is its text in messages."""

    RUN = "a run that holds the node's lease"
    RUN_OVER = "a run that has ended without a verdict"
    FAIL = "a FAIL of a run"
    BUDGET = f"{INCONCLUSIVE_BUDGET} inconclusive runs"
    QUALIFYING = "a run that found nothing critical (PASS, WARN or PROVISIONAL)"
    FULL_PASS = "a full-coverage PASS"
    HELD = "a verdict that is held"
    NOTHING_NEW = "a run that gives no reason to end its service"
    OBSERVED = "an observation for which the health policy ends its service"
    PLACE = "a full-coverage PASS and the place of a node that left production"
    REPAIR = "a repair that is reserved in the records"
    PERSON = "a named person with a reason"
    ADOPTION = "a named person who adopts it, in shadow mode, with a reason"
    REPLACEMENT = "a named person who replaces the machine, with a reason"

    def met(self, evidence: Evidence) -> bool:
        """Whether ``evidence`` meets this requirement."""
        return _MET[self](evidence)


def _by_a_person(evidence: Evidence) -> bool:
    return is_person(evidence.person) and bool(evidence.reason.strip())


_MET: Mapping[Need, Callable[[Evidence], bool]] = {
    Need.RUN: lambda each: bool(each.run) and not each.run_over,
    Need.RUN_OVER: lambda each: bool(each.run) and each.run_over,
    Need.FAIL: lambda each: bool(each.run) and each.verdict is Verdict.FAIL,
    Need.BUDGET: lambda each: each.budget_spent,
    Need.QUALIFYING: lambda each: bool(each.run) and each.verdict in (Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL),
    Need.FULL_PASS: lambda each: bool(each.run) and each.verdict is Verdict.PASS and each.full_coverage,
    Need.HELD: lambda each: bool(each.run) and each.held,
    Need.NOTHING_NEW: lambda each: bool(each.run) and each.nothing_new,
    Need.OBSERVED: lambda each: bool(each.observed),
    Need.PLACE: lambda each: bool(each.replaces) and each.verdict is Verdict.PASS and each.full_coverage,
    Need.REPAIR: lambda each: bool(each.repair),
    Need.PERSON: _by_a_person,
    Need.ADOPTION: lambda each: each.adopted and _by_a_person(each),
    Need.REPLACEMENT: lambda each: each.replaced and _by_a_person(each),
}


def _transitions() -> dict[tuple[State, State], tuple[Need, ...]]:
    s, n = State, Need
    table: dict[tuple[State, State], tuple[Need, ...]] = {
        (s.REGISTERED, s.INTAKE): (n.RUN,),
        (s.REGISTERED, s.PRODUCTION): (n.ADOPTION,),
        (s.INTAKE, s.BURN_IN): (n.RUN,),
        (s.BURN_IN, s.VALIDATION): (n.RUN,),
        (s.VALIDATION, s.QUALIFIED): (n.QUALIFYING, n.PERSON),
        (s.QUALIFIED, s.CLUSTER_VALIDATION): (n.RUN,),
        (s.QUALIFIED, s.PRODUCTION): (n.PLACE, n.PERSON),
        (s.CLUSTER_VALIDATION, s.PRODUCTION): (n.FULL_PASS, n.PERSON),
        (s.CLUSTER_VALIDATION, s.QUALIFIED): (n.RUN_OVER, n.PERSON),
        (s.PRODUCTION, s.REVALIDATION): (n.RUN,),
        (s.PRODUCTION, s.PRODUCTION): (n.PERSON,),  # a person accepts what is known of it by now
        (s.REVALIDATION, s.PRODUCTION): (n.FULL_PASS, n.HELD, n.NOTHING_NEW, n.PERSON),
        (s.REVALIDATION, s.QUALIFIED): (n.QUALIFYING, n.PERSON),
        (s.REVALIDATION, s.REGISTERED): (n.PERSON,),
        # Back to an earlier state: a cleared stage, or a qualified node tested again for another reason.
        (s.BURN_IN, s.INTAKE): (n.RUN,),
        (s.VALIDATION, s.INTAKE): (n.RUN,),
        (s.VALIDATION, s.BURN_IN): (n.RUN,),
        (s.QUALIFIED, s.INTAKE): (n.RUN,),
        (s.QUALIFIED, s.REGISTERED): (n.PERSON,),
        (s.PRODUCTION, s.REGISTERED): (n.PERSON,),
        (s.QUARANTINE, s.TRIAGE): (n.BUDGET, n.REPAIR, n.PERSON),
        (s.TRIAGE, s.REPAIR): (n.REPAIR, n.PERSON),
        (s.TRIAGE, s.RMA): (n.PERSON,),
        (s.REPAIR, s.REGISTERED): (n.REPAIR, n.PERSON),
        (s.REPAIR, s.QUARANTINE): (n.REPAIR, n.PERSON),
        (s.RMA, s.REGISTERED): (n.PERSON,),
        (s.RETIRED, s.REGISTERED): (n.PERSON,),
    }
    for state in (s.INTAKE, s.BURN_IN, s.VALIDATION):
        table[state, s.REGISTERED] = (n.RUN_OVER, n.QUALIFYING, n.HELD, n.PERSON)
    for state in s:
        if state not in (*BROKEN, s.RETIRED):
            observed = (n.OBSERVED,) if state in SERVING else ()
            table[state, s.QUARANTINE] = (n.FAIL, n.BUDGET, *observed, n.PERSON)
        if state is not s.RETIRED:
            table[state, s.RETIRED] = (n.PERSON,)
        if state is not s.REGISTERED:
            table[state, s.REGISTERED] = (*table.get((state, s.REGISTERED), ()), n.REPLACEMENT)
    return table


TRANSITIONS = _transitions()
"""(from, to) -> requirements, any one of which suffices. Other moves are illegal."""


def check_move(current: State, to: State, evidence: Evidence, *, shadow: bool = False) -> None:
    """Raise IllegalMove, listing the moves from ``current`` that are possible, unless the table allows this one.

    A node in ``shadow`` mode is judged and reported, but only a person moves it.
    """
    if shadow and not Need.PERSON.met(evidence):
        sentence = f"it is in shadow mode, and from {current} to {to} needs {Need.PERSON.value}"
        raise IllegalMove(sentence, Refusal.SHADOW)
    needs = TRANSITIONS.get((current, to))
    if needs is None:
        ways = ", ".join(person_moves(current)) if evidence.person else possible_moves(current)
        sentence = f"no node goes from {current} to {to}; from {current} it can go to {ways}"
        raise IllegalMove(sentence, Refusal.NO_SUCH_MOVE)
    if not any(need.met(evidence) for need in needs):
        raise IllegalMove(f"from {current} to {to} needs {_words(needs)}; {_lacks(evidence)}", Refusal.EVIDENCE)


def possible_moves(current: State) -> str:
    """Returns the moves out of ``current`` with their requirements, as text."""
    moves = [f"{to} (needs {_words(needs)})" for (origin, to), needs in TRANSITIONS.items() if origin is current]
    return ", ".join(moves) or "no other state"


def steps(current: State, to: State) -> tuple[State, ...]:
    """Returns the states that a person's move from ``current`` passes, ``to`` last; the move may still be illegal.

    On the way to a repair and back none is left out, so that the history is complete after a single decision.
    """
    out = (State.QUARANTINE, State.TRIAGE)
    ways = {State.TRIAGE: out, State.REPAIR: (*out, State.REPAIR), State.RMA: (*out, State.RMA)}
    if current in out:
        ways[State.REGISTERED] = (*out, State.REPAIR, State.REGISTERED)
    way = ways.get(to, (to,))
    rest = way[way.index(current) + 1 :] if current in way else way
    return rest if rest and all(pair in TRANSITIONS for pair in itertools.pairwise((current, *rest))) else (to,)


def person_moves(current: State) -> list[State]:
    """Returns the states into which a named person may move a node from ``current``."""

    def may(to: State) -> bool:
        pairs = itertools.pairwise((current, *steps(current, to)))
        return all(Need.PERSON in TRANSITIONS.get(pair, ()) for pair in pairs)

    return [to for to in State if may(to)]


def state_for(stage: str, current: State) -> State:
    """Returns the state for ``stage`` of a node in ``current`` that is not in shadow mode."""
    return State.REVALIDATION if current in SERVING else STATE_OF_STAGE[stage]


def path_to_stage(stage: str, current: State, done: frozenset[str], *, shadow: bool = False) -> tuple[State, ...]:
    """Returns the states to move through, in order, so that ``stage`` can run; empty if the node is there.

    A run that was cleared in the middle passes again through the states of the earlier stages in ``done``, never past
    another stage. The last state returned may still be illegal. A node in ``shadow`` mode is tested in its state.
    """
    target = state_for(stage, current)
    if shadow or current is target:
        return ()
    order = (State.INTAKE, State.BURN_IN, State.VALIDATION)
    if current in (State.REGISTERED, State.QUALIFIED) and target in order:
        earlier = STAGES[: STAGES.index(stage)]
        if all(each in done for each in earlier if STATE_OF_STAGE[each] is not target):
            return order[: order.index(target) + 1]
    return (target,)


@dataclasses.dataclass(frozen=True)
class Closing:
    """The effect of a run's end on its node: the states to move through, why, and the inconclusive runs in a row.

    ``verified``: the node leaves shadow mode. ``why_held``: why its verdict is held, if it is.
    """

    path: tuple[State, ...]
    inconclusive: int
    reason: str
    verified: bool = False
    why_held: str = ""

    def withdraws(self, current: State) -> bool:
        """Whether a node in ``current`` leaves service, or stays out of it until it passes."""
        end = self.path[-1] if self.path else current
        return current in SERVING and end is not State.PRODUCTION

    def hold(self, current: State, why: str) -> Closing:
        """Returns the end as held: the node stays in production if it was in service, or waits for another test."""
        waits = (State.REGISTERED,) if current in IN_FLIGHT - {State.CLUSTER_VALIDATION} else ()
        back = (State.PRODUCTION,) if current is State.REVALIDATION else waits
        return dataclasses.replace(self, path=back, reason=f"{self.reason}, which is held: {why}", why_held=why)


def closing(
    current: State,
    verdict: Verdict,
    full_coverage: bool,
    inconclusive: int,
    *,
    shadow: bool = False,
    nothing_new: bool = False,
) -> Closing:
    """Returns the effect of ``verdict`` on a node in ``current`` after ``inconclusive`` inconclusive runs in a row.

    A node that a person moved during the run (quarantine, triage, …) stays there. A node in ``shadow`` mode stays in
    service; a full-coverage PASS ends its shadow mode. ``nothing_new``: as in ``Evidence``; after an inconclusive run
    of this kind the node goes on serving, and the run is counted. After another inconclusive revalidation it stays in
    revalidation, out of production, until the next one.
    """
    s = State
    if shadow:
        return Closing((), 0, f"the run ended with {verdict}", verified=verdict is Verdict.PASS and full_coverage)
    if current in (*BROKEN, s.RETIRED):
        return Closing((), inconclusive, "")
    if verdict is Verdict.FAIL:
        return Closing((s.QUARANTINE,), 0, "the run found a critical fault")
    if verdict is Verdict.INCONCLUSIVE and nothing_new and current in SERVING:
        path = (s.PRODUCTION,) if current is s.REVALIDATION else ()
        return Closing(path, inconclusive + 1, f"inconclusive run {inconclusive + 1} in a row, which found nothing")
    if verdict is Verdict.INCONCLUSIVE and inconclusive + 1 >= INCONCLUSIVE_BUDGET:
        reason = f"{inconclusive + 1} runs in a row were inconclusive: a person has to decide"
        return Closing((s.QUARANTINE, s.TRIAGE), 0, reason)
    home = (s.REGISTERED,) if current in IN_FLIGHT - {s.CLUSTER_VALIDATION} else ()
    if verdict is Verdict.INCONCLUSIVE:
        return Closing(home, inconclusive + 1, f"inconclusive run {inconclusive + 1} of {INCONCLUSIVE_BUDGET} in a row")
    if verdict is Verdict.SKIPPED:
        home = (s.PRODUCTION,) if nothing_new and current is s.REVALIDATION else home
        return Closing(home, inconclusive, "the run did not test the node")
    if current is s.VALIDATION:
        return Closing((s.QUALIFIED,), 0, f"the run ended with {verdict}")
    if current is s.REVALIDATION:
        back = s.PRODUCTION if (verdict is Verdict.PASS and full_coverage) or nothing_new else s.QUALIFIED
        return Closing((back,), 0, f"the revalidation ended with {verdict}")
    return Closing(home, 0, f"the run ended with {verdict} before validation")


def _words(needs: tuple[Need, ...]) -> str:
    return " or ".join(need.value for need in needs)


def _lacks(evidence: Evidence) -> str:
    have = []
    if evidence.run:
        have.append(f"run {evidence.run}" + (" (over)" if evidence.run_over else ""))
    if evidence.verdict:
        coverage = "full" if evidence.full_coverage else "not full"
        have.append(f"verdict {evidence.verdict} with coverage {coverage}")
    if evidence.observed:
        have.append(f"observation {evidence.observed}")
    if evidence.person:
        have.append(f"{evidence.person}" + ("" if evidence.reason.strip() else " without a reason"))
    return f"there is only {', '.join(have)}" if have else "there is no such evidence"
