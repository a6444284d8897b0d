"""Recent failures of other nodes: the input for telling a common cause from a fault of one node."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.model.states import State
from muster.rules.lifecycle import ending
from muster.settings import settings
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import FindingRow, NodeRow, RunRow, StageRow
from muster_criteria.model import Finding

if TYPE_CHECKING:
    from muster_criteria.context.alike import Neighbour


def neighbours(node: str, stage: str, before: datetime.datetime | None = None) -> list[Neighbour]:
    """The other nodes judged in that stage within MUSTER_COMMON_CAUSE_HOURS ``before`` (default: now).

    Real and simulated nodes are separate fleets. Raises UnknownNode.
    """
    with reading() as session:
        return _neighbours(session, access.node_row(session, node), stage, before or access.now())


def findings_of_run(session: Session, run: RunRow) -> list[tuple[str, Finding]]:
    """(stage, finding) of the run's current verdicts."""
    query = (
        select(StageRow.stage, FindingRow)
        .join(FindingRow, FindingRow.stage == StageRow.id)
        .where(StageRow.run == run.id, StageRow.current)
        .order_by(FindingRow.id)
    )
    return [(stage, access.to_finding(row)) for stage, row in session.execute(query)]


def note_shared_cause(session: Session, run: RunRow, found: Sequence[tuple[str, Finding]]) -> None:
    """Add a remark to the history of each quarantined node that failed earlier with the same cause.

    Only a person takes a node out of quarantine; the remark prevents that sound parts are returned to the vendor.
    """
    node, moment = access.node_row(session, run.node), access.now()
    others = {stage: _neighbours(session, node, stage, moment) for stage in {stage for stage, _ in found}}
    for name, sentence in ending.shared_cause_notes(run.node, found, others).items():
        other = access.node_row(session, name)
        if State(other.state) is State.QUARANTINE:
            access.remark(session, other, "muster", sentence, {"common_cause": f"{run.dag_id}/{run.run_id}"})


@dataclasses.dataclass
class _Latest:
    """The latest verdict of a stage on one node."""

    stage: int
    rack: str
    environment: Mapping[str, str | None]


def _neighbours(session: Session, own: NodeRow, stage: str, until: datetime.datetime) -> list[Neighbour]:
    """The other nodes that were judged in that stage in the window, each by its latest verdict there."""
    # Imported here because it brings pandas, and every task process that parses a DAG file imports the records.
    from muster_criteria.context.alike import Neighbour, groups_of, symptom

    since = until - datetime.timedelta(hours=settings().common_cause_hours)

    query = (
        select(StageRow.id, RunRow.node, NodeRow.rack, StageRow.environment)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(StageRow.stage == stage, StageRow.recorded_at > since, StageRow.recorded_at <= until)
        .where(StageRow.verdict.in_(access.CONCLUSIVE), RunRow.node != own.name, NodeRow.simulated == own.simulated)
        .order_by(StageRow.id)
    )
    latest = {row.node: _Latest(row.id, row.rack, row.environment) for row in session.execute(query)}
    found: dict[int, list[Finding]] = {}
    stages = [each.stage for each in latest.values()]
    for row in session.scalars(select(FindingRow).where(FindingRow.stage.in_(stages))):
        found.setdefault(row.stage, []).append(access.to_finding(row))
    return [
        Neighbour(
            node,
            groups_of(each.rack, each.environment),
            frozenset(name for finding in found.get(each.stage, ()) if (name := symptom(finding))),
            frozenset(
                symptom(dataclasses.replace(finding, waived=""))
                for finding in found.get(each.stage, ())
                if finding.waived
            ),
        )
        for node, each in sorted(latest.items())
    ]
