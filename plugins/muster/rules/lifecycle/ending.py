"""The effect of a run's end on its node. Pure: ``muster.store`` loads the facts and stores the result.

A verdict withdraws a node only while the circuit breaker is closed, and quarantines it only for findings
that it does not share with other nodes of its rack or image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from muster.model.breaker import Breaker
from muster.model.events import Evidence
from muster.model.nodes import Node
from muster.model.runs import Run, RunKey, StageVerdict
from muster.model.stages import STAGES, all_of
from muster.model.states import SERVING, State
from muster.rules.lifecycle import transitions
from muster.rules.lifecycle.current import thoroughness
from muster.rules.lifecycle.transitions import Closing
from muster_criteria.model import COMMON_CAUSE, Finding, Verdict

if TYPE_CHECKING:
    from muster_criteria.context.alike import Neighbour

CORRUPTED = "a part of it corrupted data before"
"""Why a node leaves service if only a suspect part stands against it."""

OTHER = "another machine answers than the one that was qualified: a person has to decide"
"""Why a node leaves service without waiting for more inconclusive runs."""

_FOUND_NOTHING = frozenset({Verdict.PASS, Verdict.PROVISIONAL, Verdict.INCONCLUSIVE, Verdict.SKIPPED})


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """A run and its node, from the records.

    ``stages``: the run's current verdicts. ``verdicts``: the current verdicts on the node, of all runs. ``against``:
    what stands against its service whatever this run found, without what a held verdict found. ``suspect``: a part of
    the node corrupted data before, without a waiver valid now. ``accepted``: all that the run found is waived now.
    ``blameless``: the node refused a job of the run as older than one that it has seen, or the SKU file changed while
    the probes ran. ``clean``: all that the run found, informative findings apart, is ``accepted``. ``preempted``: the
    run was a job of the scheduler, which ended it for a user's. ``other_machine``: another machine answered under the
    node's name, and its results were refused.
    """

    run: Run
    node: Node
    stages: Sequence[StageVerdict]
    verdicts: Sequence[StageVerdict]
    suspect: bool
    accepted: bool
    blameless: bool = False
    clean: bool = False
    preempted: bool = False
    other_machine: bool = False
    against: Sequence[str] = ()

    @property
    def full_coverage(self) -> bool:
        """Whether the run passed with full coverage, on this kind of node, without a suspect part in it."""
        return not self.suspect and not self.against and self._covered(Verdict.PASS)

    def nothing_new(self, verdict: Verdict) -> bool:
        """Whether a run that ends with ``verdict`` gives no reason to end the service of a node in revalidation.

        Either it took the node out of production, could not test it or judge all that it measured, and found nothing
        until then; or it tested all with full coverage, and warns only of findings that a person accepted when
        admitting the node.
        """
        if verdict in (Verdict.INCONCLUSIVE, Verdict.PROVISIONAL):
            decided = {each.verdict for each in self.stages} <= _FOUND_NOTHING and not self._foreign
            found = not decided or not self.clean or self.suspect or self.against
            return self.run.state_before is State.PRODUCTION and not found
        if verdict is Verdict.SKIPPED:
            # Users preempt a test by submitting jobs; that must not let them discard its findings.
            passed = {each.verdict for each in self.stages} <= (_FOUND_NOTHING if self.preempted else {Verdict.PASS})
            return self.run.state_before is State.PRODUCTION and passed and self.clean and not self.against
        warned = verdict is Verdict.WARN and self.accepted and not self.suspect and not self.against
        return warned and self._covered(Verdict.PASS, Verdict.WARN)

    @property
    def unanswered(self) -> bool:
        """Whether a stage that such a run can measure as thoroughly is still inconclusive: a PASS of other stages does
        not change that.
        """
        rank, stages = thoroughness(self.run.level), all_of(self.run.dag_id)
        standing = [each for each in self.verdicts if each.verdict is Verdict.INCONCLUSIVE and each.stage in stages]
        return any(thoroughness(each.level) <= rank for each in standing)

    def still_held(self, held_run: RunKey | None) -> RunKey | None:
        """Returns ``held_run``, whose verdict is held, while no later test replaced what it found."""
        found = {each.key for each in self.verdicts if each.verdict not in _FOUND_NOTHING}
        return held_run if held_run in found else None

    @property
    def _foreign(self) -> bool:
        return self.run.simulated and not self.node.simulated

    def _covered(self, *verdicts: Verdict) -> bool:
        return full_coverage(self.run.required_stages, self.stages, verdicts) and not self._foreign


def full_coverage(
    required: Collection[str], stages: Iterable[StageVerdict], verdicts: Collection[Verdict] = (Verdict.PASS,)
) -> bool:
    """Whether every required stage has one of ``verdicts`` with full coverage. Without a required stage: False."""
    covered = {each.stage for each in stages if each.verdict in verdicts and each.full_coverage}
    return bool(required) and set(required) <= covered


def attested(claimed: Evidence, facts: RunFacts | None) -> Evidence:
    """Returns ``claimed`` with everything about the run replaced by the facts.

    ``facts`` is None if the run does not hold the node; the run is then no evidence. ``run_over`` and ``budget_spent``
    are never taken from a claim.
    """
    if facts is None:
        return Evidence(person=claimed.person, reason=claimed.reason)
    verdict = facts.run.verdict
    if verdict is None and any(each.verdict is Verdict.FAIL for each in facts.stages):
        verdict = Verdict.FAIL  # one failed stage fails the run, so it counts before the run has ended
    full = facts.full_coverage
    if facts.node.state is State.CLUSTER_VALIDATION:
        full = full and _qualified_in_full(facts.verdicts)  # the PASS of a block does not qualify its members
    return Evidence(run=claimed.run, verdict=verdict, full_coverage=full, person=claimed.person, reason=claimed.reason)


def end_of_run(facts: RunFacts, verdict: Verdict, admission_level: str) -> tuple[Closing, bool]:
    """Returns (the effect on the node, whether the run passed with full coverage), before anything is held."""
    run, node = facts.run, facts.node
    full = facts.full_coverage
    if node.shadow:
        # Shadow mode ends only on a test as complete as a qualification.
        thorough = thoroughness(run.level) >= thoroughness(admission_level)
        full = full and thorough and set(STAGES) <= set(run.required_stages)
    nothing_new = facts.nothing_new(verdict)
    if facts.blameless and verdict is Verdict.INCONCLUSIVE:
        verdict = Verdict.SKIPPED  # restored records, a second controller, a changed SKU file: not the node's fault
    end = transitions.closing(node.state, verdict, full, node.inconclusive, shadow=node.shadow, nothing_new=nothing_new)
    if facts.other_machine and node.state in SERVING and not node.shadow and verdict is not Verdict.FAIL:
        end = Closing((State.QUARANTINE, State.TRIAGE), 0, OTHER)
    if verdict not in (Verdict.FAIL, Verdict.INCONCLUSIVE) and facts.unanswered:
        end = dataclasses.replace(end, inconclusive=node.inconclusive)
    stands = (*facts.against, *([CORRUPTED] if facts.suspect else []))
    if stands and end.withdraws(node.state):
        end = dataclasses.replace(end, reason=f"{end.reason}; {stands[0]}")
    return end, full


def undecided(required: Iterable[str], judged: Collection[str], reason: str) -> str:
    """Returns the headline of a run that ended for ``reason`` before a task combined the verdicts of the stages
    ``judged``.
    """
    lacks = next((stage for stage in required if stage not in judged), "")
    what = f"Stage {lacks} has no verdict" if lacks else "No task combined the verdicts of the stages"
    return f"{what} ({reason}); the logs of its tasks say why, unless Airflow deleted it."


def hold_back(
    end: Closing, state: State, verdict: Verdict, breaker: Breaker | None, findings: Iterable[Finding]
) -> tuple[Closing, bool]:
    """Returns (``end`` or its held form, whether it is held for a cause that other nodes share).

    ``state``: the node's. ``breaker``: None if the end does not take the node out of service. ``findings``: the run's.
    """
    from muster_criteria.context.alike import why_held

    if breaker is not None and breaker.why:
        end = end.hold(state, breaker.why)
    if State.QUARANTINE in end.path and verdict is Verdict.FAIL and (why := why_held(findings)):
        return end.hold(state, why), True
    return end, False


def shared_cause_notes(
    node: str, causes: Iterable[tuple[str, Finding]], neighbours: Mapping[str, Sequence[Neighbour]]
) -> dict[str, str]:
    """Returns {other node: remark for its history} of nodes that failed earlier with a cause that ``node`` shares.

    ``causes``: (stage, finding) of the run of ``node``. ``neighbours``: by stage, the nodes tested in the window.
    """
    from muster_criteria.context.alike import GROUPED

    notes: dict[str, str] = {}
    for stage, finding in causes:
        labels = dict(finding.labels)
        by, name = labels.get(GROUPED, ""), labels.get("name", "")
        if finding.rule != COMMON_CAUSE or not by:
            continue
        for other in neighbours.get(stage, ()):
            if other.groups.get(by) == name and finding.metric in other.failing:
                notes.setdefault(
                    other.node,
                    f"{node} failed in {finding.metric} too: the likely cause is the {finding.fault_class} of {by} "
                    f"{name}; return no device before that is ruled out",
                )
    return notes


def _qualified_in_full(verdicts: Sequence[StageVerdict]) -> bool:
    by_stage = {stage: [each for each in verdicts if each.stage == stage] for stage in STAGES}
    return all(
        found and all(each.verdict is Verdict.PASS and each.full_coverage for each in found)
        for found in by_stage.values()
    )
