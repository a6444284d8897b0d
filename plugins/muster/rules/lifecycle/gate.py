"""The gate to production: admits a node, requires a person's decision, or refuses the node. Pure.

A node is admitted automatically only with a full-coverage PASS of every stage, at node and at cluster level, thorough
and recent enough, without open findings, waivers and simulated results. A person decides on the rest, unless refused.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Iterator, Sequence

from muster.model.names import SPARE_LABEL
from muster.model.nodes import Node
from muster.model.runs import OpenFinding, StageVerdict
from muster.model.stages import CLUSTER_STAGES, STAGES
from muster.model.states import SERVING, State
from muster.rules.lifecycle.current import current_of, thoroughness
from muster.rules.lifecycle.transitions import TRANSITIONS, Need
from muster_criteria.context.waivers import Waiver
from muster_criteria.model import Severity, Verdict


@dataclasses.dataclass(frozen=True)
class Limits:
    """The maximum age of a PASS, and the minimum level."""

    fresh: datetime.timedelta
    level: str


@dataclasses.dataclass(frozen=True)
class Admit:
    """The node enters production without a person's decision."""


@dataclasses.dataclass(frozen=True)
class NeedsPerson:
    """A named person may admit the node, with a reason; ``reasons``: the open points."""

    reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Refuse:
    """The node must not enter production until ``reasons`` are resolved; no person may override this."""

    reasons: tuple[str, ...]


Decision = Admit | NeedsPerson | Refuse

CLOCKS_DIFFER = datetime.timedelta(hours=1)
"""A PASS that is dated further ahead than this has no known age."""

Stage = tuple[str, str, str]
"""One stage of one run: (stage, DAG id, run id)."""


def decide(
    node: Node,
    verdicts: Iterable[StageVerdict],
    findings: Sequence[OpenFinding],
    waivers: Sequence[Waiver],
    *,
    limits: Limits,
    now: datetime.datetime,
    kept: Collection[Stage] = (),
    unproved: Sequence[str] = (),
    fails_again: str = "",
    rack_held: str = "",
) -> Decision:
    """Returns whether the node may enter production (or stay there).

    ``verdicts``: of the node's machine, at node and cluster level; superseded ones are ignored. ``findings``: its open
    findings with the waivers valid now. ``waivers``: those about the node. ``kept``: stages despite which a person
    keeps it in service; they are no reason to refuse a node that serves. ``unproved``: a sentence for each incident of
    its machine whose repair no test has proved. ``fails_again``: why its failures stop its normal use, "" if they do
    not. ``rack_held``: why its rack waits for a person, "" if it does not.
    """
    current = current_of(verdicts)
    kept = kept if node.state in SERVING else ()
    refusals = (
        *_out_of_place(node),
        *_failed([each for each in current if stage_of(each) not in kept], findings),
        *_open_critical([each for each in findings if stage_of(each) not in kept]),
    )
    if refusals:
        return Refuse(refusals)
    open_points = (
        *_lacking(node, current, limits, now),
        *_lemon(node, fails_again),
        *([rack_held] if rack_held and node.state not in SERVING else ()),
        *_not_passed(current),
        *_simulated(node, current),
        *_open(findings),
        *(f"a waiver is in effect, {waiver}" for waiver in waivers if waiver.holds(now)),
        *unproved,
    )
    return NeedsPerson(open_points) if open_points else Admit()


def stage_of(found: StageVerdict | OpenFinding) -> Stage:
    """Returns the stage that a verdict or finding is of."""
    return found.stage, found.dag_id, found.run_id


def against(
    verdicts: Iterable[StageVerdict],
    findings: Sequence[OpenFinding],
    *,
    accepted: Collection[Stage],
    kept: Collection[Stage],
) -> tuple[str, ...]:
    """Returns what stands against a node's service whatever another test finds: each FAIL and each finding above INFO
    that is not waived, except warnings of ``accepted`` stages and everything of ``kept`` ones.
    """
    known = {True: kept, False: accepted}
    left = [
        each
        for each in findings
        if not each.finding.waived and stage_of(each) not in known[each.finding.severity is Severity.CRITICAL]
    ]
    failed = [each for each in current_of(verdicts) if stage_of(each) not in kept]
    return (*_failed(failed, findings), *_open(left))


def _out_of_place(node: Node) -> Iterator[str]:
    if Need.PERSON not in TRANSITIONS.get((node.state, State.PRODUCTION), ()):
        yield f"its state is {node.state}, and no node enters production from there"


def _failed(current: Sequence[StageVerdict], findings: Sequence[OpenFinding]) -> Iterator[str]:
    """Current FAILs, except those whose critical findings are all waived now: these need a person."""
    for verdict in current:
        if verdict.verdict is Verdict.FAIL:
            critical = [
                each.finding
                for each in findings
                if stage_of(each) == stage_of(verdict) and each.finding.severity is Severity.CRITICAL
            ]
            if not critical or not all(finding.waived for finding in critical):
                yield f"{verdict.stage} failed in run {verdict.run_id}: {verdict.reason}"


def _open_critical(findings: Sequence[OpenFinding]) -> Iterator[str]:
    for found in findings:
        if found.finding.severity is Severity.CRITICAL and not found.finding.waived:
            yield f"open finding {found.finding.id}: {found.finding.summary}"


def _lacking(node: Node, current: Sequence[StageVerdict], limits: Limits, now: datetime.datetime) -> Iterator[str]:
    if node.pause and node.state is not State.PRODUCTION:
        yield f"its tests are {node.pause}"
    if node.shadow:
        yield "it was adopted in service and is unverified"
    elif node.state is not State.PRODUCTION and not _by_itself(node):
        yield f"its state is {node.state}, and a test alone does not admit it from there"
    for stage in (*STAGES, *CLUSTER_STAGES):
        passes = [each for each in current if each.stage == stage and each.verdict is Verdict.PASS]
        if not any(each.stage == stage for each in current):
            yield f"{stage} was never tested"
        elif passes:
            yield from _unfit(stage, passes, limits, now)


def _lemon(node: Node, fails_again: str) -> Iterator[str]:
    """Yields nothing for a node that serves already: each failure takes it out."""
    if node.state not in SERVING:
        if node.lemon:
            yield f"it is {node.lemon}"
        if fails_again:
            yield fails_again


def _by_itself(node: Node) -> bool:
    """Whether a full-coverage PASS can be enough: after a test, or for a spare that takes another node's place."""
    needs = TRANSITIONS[node.state, State.PRODUCTION]
    return Need.FULL_PASS in needs or (Need.PLACE in needs and bool(node.labels.get(SPARE_LABEL)))


def _unfit(stage: str, passes: Sequence[StageVerdict], limits: Limits, now: datetime.datetime) -> Iterator[str]:
    """Yields why none of the stage's passes is sufficient."""
    thorough = [each for each in passes if thoroughness(each.level) >= thoroughness(limits.level)]
    if not thorough:
        levels = ", ".join(sorted({each.level for each in passes}))
        yield f"{stage} passed at level {levels} only, and {limits.level} is required"
    elif not any(-CLOCKS_DIFFER <= now - each.recorded_at <= limits.fresh for each in thorough):
        last = max(each.recorded_at for each in thorough)
        if last > now + CLOCKS_DIFFER:
            yield f"{stage} passed on {last:%Y-%m-%d %H:%M} UTC, which lies ahead: by a clock that is, or was, wrong"
            return
        hours = f"{limits.fresh.total_seconds() / 3600:g} hours"
        yield f"{stage} passed last on {last:%Y-%m-%d %H:%M} UTC, longer ago than {hours}"


def _not_passed(current: Sequence[StageVerdict]) -> Iterator[str]:
    for verdict in current:
        if verdict.verdict is not Verdict.PASS:
            yield f"{verdict.stage} is {verdict.verdict} in run {verdict.run_id}: {verdict.reason}"
        elif not verdict.full_coverage:
            yield f"{verdict.stage} passed without full coverage in run {verdict.run_id}"


def _simulated(node: Node, current: Sequence[StageVerdict]) -> Iterator[str]:
    for verdict in current:
        if verdict.simulated and not node.simulated:
            yield f"{verdict.stage} in run {verdict.run_id} is a simulated result, and the node is real"


def _open(findings: Sequence[OpenFinding]) -> Iterator[str]:
    for found in findings:
        if found.finding.severity is not Severity.INFO:
            waived = f" (waived {found.finding.waived})" if found.finding.waived else ""
            yield f"open finding {found.finding.id}: {found.finding.summary}{waived}"
