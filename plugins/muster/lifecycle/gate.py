"""The gate to production: what may pass by itself, what needs a person by name, what is refused. Pure.

Only one thing passes by itself: a full-coverage PASS of every stage, at node and at cluster level, thorough and fresh
enough, with nothing open, nothing waived and nothing taken on trust. Whatever is not refused is for a person to decide.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from muster.lifecycle.current import standing, thoroughness
from muster.lifecycle.transitions import CLUSTER_STAGES, STAGES, TRANSITIONS, Need, State
from muster_criteria.context.waivers import Waiver
from muster_criteria.model import Severity, Verdict

if TYPE_CHECKING:
    from muster.records import NodeRecord, OpenFinding, StageVerdict


@dataclasses.dataclass(frozen=True)
class Limits:
    """How old a PASS may be, how thorough it must be at least, and which stages are asked for.

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
    """It may not enter production, whoever asks, until this is settled."""

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
    stands = standing(verdicts)
    refusals = (*_out_of_place(node), *_failed(stands, findings), *_convicted(findings))
    if refusals:
        return Refuse(refusals)
    doubts = (
        *_lacking(node, stands, limits, now),
        *_doubtful(stands),
        *_open(findings),
        *(f"a waiver stands, {waiver}" for waiver in waivers if waiver.holds(now)),
    )
    return NeedsPerson(doubts) if doubts else Admit()


def _out_of_place(node: NodeRecord) -> Iterator[str]:
    if node.state is not State.PRODUCTION and Need.PERSON not in TRANSITIONS.get((node.state, State.PRODUCTION), ()):
        yield f"it is in {node.state}, from where no node enters production"


def _failed(stands: Sequence[StageVerdict], findings: Sequence[OpenFinding]) -> Iterator[str]:
    """A FAIL stands, unless each of its critical findings has been waived since: then a person may bear with it."""
    for said in stands:
        if said.verdict is Verdict.FAIL:
            convicting = [
                each.finding
                for each in findings
                if (each.stage, each.dag_id, each.run_id) == (said.stage, said.dag_id, said.run_id)
                and each.finding.severity is Severity.CRITICAL
            ]
            if not convicting or not all(finding.waived for finding in convicting):
                yield f"{said.stage} failed in run {said.run_id}: {said.reason}"


def _convicted(findings: Sequence[OpenFinding]) -> Iterator[str]:
    for found in findings:
        if found.finding.severity is Severity.CRITICAL and not found.finding.waived:
            yield f"open finding {found.finding.id}: {found.finding.summary}"


def _lacking(node: NodeRecord, stands: Sequence[StageVerdict], limits: Limits, now: datetime.datetime) -> Iterator[str]:
    if node.shadow:
        yield "it was adopted while it served, and is unverified"
    elif node.state is not State.PRODUCTION and Need.FULL_PASS not in TRANSITIONS[node.state, State.PRODUCTION]:
        yield f"it is in {node.state}, from where no test alone takes it into production"
    for stage in (*limits.stages, *limits.cluster_stages):
        passes = [each for each in stands if each.stage == stage and each.verdict is Verdict.PASS]
        if not any(each.stage == stage for each in stands):
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


def _doubtful(stands: Sequence[StageVerdict]) -> Iterator[str]:
    for said in stands:
        if said.verdict is not Verdict.PASS:
            yield f"{said.stage} is {said.verdict} in run {said.run_id}: {said.reason}"
        elif not said.full_coverage:
            yield f"{said.stage} passed without full coverage in run {said.run_id}"


def _open(findings: Sequence[OpenFinding]) -> Iterator[str]:
    for found in findings:
        if found.finding.severity is not Severity.INFO:
            waived = f" (waived {found.finding.waived})" if found.finding.waived else ""
            yield f"open finding {found.finding.id}: {found.finding.summary}{waived}"


def _hours(age: datetime.timedelta) -> str:
    return f"{age.total_seconds() / 3600:g} hours"
