"""The gate to production: what may pass by itself, what needs a person by name, what is refused. Pure.

Only one thing passes by itself: a full-coverage PASS of every stage, at node and at cluster level, thorough and fresh
enough, with nothing open, nothing waived and nothing taken on trust. Whatever is not refused is for a person to decide.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from muster.lifecycle.current import current_of, thoroughness
from muster.lifecycle.transitions import CLUSTER_STAGES, STAGES, TRANSITIONS, Need, State
from muster_criteria.context.waivers import Waiver
from muster_criteria.model import Severity, Verdict

if TYPE_CHECKING:
    from muster.records import NodeRecord, OpenFinding, StageVerdict


@dataclasses.dataclass(frozen=True)
class Limits:
    """How old a PASS may be, how thorough it must be at least, and which stages are required.

    ``level`` is for the stages of the node; a block is validated at whatever level its run had.
    """

    fresh: datetime.timedelta
    level: str
    stages: tuple[str, ...] = STAGES
    cluster_stages: tuple[str, ...] = CLUSTER_STAGES


@dataclasses.dataclass(frozen=True)
class Admit:
    """It may enter production by itself."""


@dataclasses.dataclass(frozen=True)
class NeedsPerson:
    """A person may admit it, by name and with a reason; ``reasons`` are what they decide about."""

    reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Refuse:
    """It may not enter production, on any person's decision, until this is resolved."""

    reasons: tuple[str, ...]


Decision = Admit | NeedsPerson | Refuse


def decide(
    node: NodeRecord,
    verdicts: Iterable[StageVerdict],
    findings: Sequence[OpenFinding],
    waivers: Sequence[Waiver],
    *,
    limits: Limits,
    now: datetime.datetime,
) -> Decision:
    """Whether the node may enter production (or stay there).

    ``verdicts`` are those of the node's machine, at node and cluster level; superseded ones do no harm. ``findings``
    are its open findings with this moment's waivers on them, ``waivers`` those that are about it.
    """
    current = current_of(verdicts)
    refusals = (*_out_of_place(node), *_failed(current, findings), *_open_critical(findings))
    if refusals:
        return Refuse(refusals)
    open_points = (
        *_lacking(node, current, limits, now),
        *_not_passed(current),
        *_simulated(node, current),
        *_open(findings),
        *(f"a waiver is in effect, {waiver}" for waiver in waivers if waiver.holds(now)),
    )
    return NeedsPerson(open_points) if open_points else Admit()


def _out_of_place(node: NodeRecord) -> Iterator[str]:
    if node.state is not State.PRODUCTION and Need.PERSON not in TRANSITIONS.get((node.state, State.PRODUCTION), ()):
        yield f"it is in {node.state}, from where no node enters production"


def _failed(current: Sequence[StageVerdict], findings: Sequence[OpenFinding]) -> Iterator[str]:
    """Current FAILs, except those whose critical findings are all waived now: these need a person."""
    for verdict in current:
        if verdict.verdict is Verdict.FAIL:
            critical = [
                each.finding
                for each in findings
                if (each.stage, each.dag_id, each.run_id) == (verdict.stage, verdict.dag_id, verdict.run_id)
                and each.finding.severity is Severity.CRITICAL
            ]
            if not critical or not all(finding.waived for finding in critical):
                yield f"{verdict.stage} failed in run {verdict.run_id}: {verdict.reason}"


def _open_critical(findings: Sequence[OpenFinding]) -> Iterator[str]:
    for found in findings:
        if found.finding.severity is Severity.CRITICAL and not found.finding.waived:
            yield f"open finding {found.finding.id}: {found.finding.summary}"


def _lacking(
    node: NodeRecord, current: Sequence[StageVerdict], limits: Limits, now: datetime.datetime
) -> Iterator[str]:
    if node.shadow:
        yield "it was adopted while it served, and is unverified"
    elif node.state is not State.PRODUCTION and Need.FULL_PASS not in TRANSITIONS[node.state, State.PRODUCTION]:
        yield f"it is in {node.state}, from where no test alone takes it into production"
    for stage in (*limits.stages, *limits.cluster_stages):
        passes = [each for each in current if each.stage == stage and each.verdict is Verdict.PASS]
        if not any(each.stage == stage for each in current):
            yield f"{stage} was never tested"
        elif passes:
            yield from _unfit(stage, passes, limits, now)


def _unfit(stage: str, passes: Sequence[StageVerdict], limits: Limits, now: datetime.datetime) -> Iterator[str]:
    """Why none of the stage's passes is one to rely on; nothing if one is."""
    thorough = passes
    if stage in limits.stages:
        thorough = [each for each in passes if thoroughness(each.level) >= thoroughness(limits.level)]
    if not thorough:
        levels = ", ".join(sorted({each.level for each in passes}))
        yield f"{stage} passed at level {levels} only, and {limits.level} is asked for"
    elif not any(now - each.recorded_at <= limits.fresh for each in thorough):
        last = max(each.recorded_at for each in thorough)
        yield f"{stage} passed last on {last:%Y-%m-%d %H:%M} UTC, longer ago than {_hours(limits.fresh)}"


def _not_passed(current: Sequence[StageVerdict]) -> Iterator[str]:
    for verdict in current:
        if verdict.verdict is not Verdict.PASS:
            yield f"{verdict.stage} is {verdict.verdict} in run {verdict.run_id}: {verdict.reason}"
        elif not verdict.full_coverage:
            yield f"{verdict.stage} passed without full coverage in run {verdict.run_id}"


def _simulated(node: NodeRecord, current: Sequence[StageVerdict]) -> Iterator[str]:
    for verdict in current:
        if verdict.simulated and not node.simulated:
            yield f"{verdict.stage} in run {verdict.run_id} rests on a simulated result, and the node is not simulated"


def _open(findings: Sequence[OpenFinding]) -> Iterator[str]:
    for found in findings:
        if found.finding.severity is not Severity.INFO:
            waived = f" (waived {found.finding.waived})" if found.finding.waived else ""
            yield f"open finding {found.finding.id}: {found.finding.summary}{waived}"


def _hours(age: datetime.timedelta) -> str:
    return f"{age.total_seconds() / 3600:g} hours"
