"""What was found lately on the other nodes, for telling a common cause from a fault of one node."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.lifecycle.transitions import State
from muster.records.database import access
from muster.records.database.engine import reading
from muster.records.database.models import FindingRow, Node, Run, StageRecord
from muster.records.reporting import finding_of
from muster.settings import settings
from muster_criteria.model import COMMON_CAUSE, Finding, Judgement, Verdict

if TYPE_CHECKING:
    from muster_criteria.context.alike import Neighbour

_LOOKED_AT = tuple(str(verdict) for verdict in (Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL, Verdict.FAIL))
"""Verdicts that say something of the node: what stayed inconclusive neither failed nor did well."""


def beside_neighbours(
    judgement: Judgement,
    node: str,
    environment: Mapping[str, str | None],
    *,
    before: datetime.datetime | None = None,
) -> Judgement:
    """The judgement beside what was found on other nodes of the same rack or image, within the window ``before`` (now).

    Real and simulated nodes are never told apart by each other. Raises UnknownNode.
    """
    # Imported where it is used: it brings pandas, and every task process parses a DAG file that loads these records.
    from muster_criteria.context.alike import beside_others, groups_of, symptom

    if judgement.verdict is not Verdict.FAIL or not any(symptom(each) for each in judgement.findings):
        return judgement
    until = before or datetime.datetime.now(datetime.UTC)
    since = until - datetime.timedelta(hours=settings().common_cause_hours)
    with reading() as session:
        own = access.node_row(session, node)
        others = _tested(session, own, judgement.stage, since, until)
        rack = own.rack
    return beside_others(judgement, node, groups_of(rack, environment), others)


def held_together(session: Session, run: Run) -> str:
    """Why the run's FAIL convicts nobody yet: all that it rests on is shared with other nodes. Else ""."""
    from muster_criteria.context.alike import why_held

    query = (
        select(FindingRow).join(StageRecord, StageRecord.id == FindingRow.stage).where(
            StageRecord.run == run.id, StageRecord.current
        )
    )  # fmt: skip
    return why_held(finding_of(each) for each in session.scalars(query))


def tell_convicted(session: Session, run: Run) -> None:
    """Write on each quarantined node that fails alike what came to light since: it was convicted before it could be.

    It stays where it is, since only a person takes a node out of quarantine; but nobody should return its parts.
    """
    from muster_criteria.context.alike import GROUPED

    own, until = access.node_row(session, run.node), access.now()
    since = until - datetime.timedelta(hours=settings().common_cause_hours)
    causes = (
        select(StageRecord.stage, FindingRow)
        .join(FindingRow, FindingRow.stage == StageRecord.id)
        .where(StageRecord.run == run.id, StageRecord.current, FindingRow.rule == COMMON_CAUSE)
    )
    sentences: dict[str, str] = {}
    for stage, row in session.execute(causes):
        by, name = row.labels.get(GROUPED, ""), row.labels.get("name", "")
        for other in _tested(session, own, stage, since, until):
            if by and other.groups.get(by) == name and row.metric in other.failing:
                sentences.setdefault(
                    other.node,
                    f"{run.node} failed alike in {row.metric} since: first of all a {row.fault_class} problem of {by} "
                    f"{name}; return no device before that is ruled out",
                )
    evidence = {"common_cause": f"{run.dag_id}/{run.run_id}"}
    for node, sentence in sentences.items():
        if (state := State(access.node_row(session, node).state)) is State.QUARANTINE:
            access.write_event(session, node, state, state, "muster", sentence, evidence)


@dataclasses.dataclass
class _Latest:
    """The latest verdict of a stage on one node."""

    stage: int
    rack: str
    environment: Mapping[str, str | None]


def _tested(
    session: Session, own: Node, stage: str, since: datetime.datetime, until: datetime.datetime
) -> list[Neighbour]:
    """All other nodes that were judged in that stage in the window, each by its latest verdict there."""
    from muster_criteria.context.alike import Neighbour, groups_of, symptom

    query = (
        select(StageRecord.id, Run.node, Node.rack, Run.environment)
        .join(Run, StageRecord.run == Run.id)
        .join(Node, Node.name == Run.node)
        .where(StageRecord.stage == stage, StageRecord.recorded_at > since, StageRecord.recorded_at <= until)
        .where(StageRecord.verdict.in_(_LOOKED_AT), Run.node != own.name, Node.simulated == own.simulated)
        .order_by(StageRecord.id)
    )
    latest = {row.node: _Latest(row.id, row.rack, row.environment) for row in session.execute(query)}
    found: dict[int, list[Finding]] = {}
    stages = [each.stage for each in latest.values()]
    for row in session.scalars(select(FindingRow).where(FindingRow.stage.in_(stages))):
        found.setdefault(row.stage, []).append(finding_of(row))
    return [
        Neighbour(
            node,
            groups_of(each.rack, each.environment),
            frozenset(name for finding in found.get(each.stage, ()) if (name := symptom(finding))),
        )
        for node, each in sorted(latest.items())
    ]
