"""What happened to the fleet in a period, for its digest."""

from __future__ import annotations

import datetime

from sqlalchemy import func, select

from muster.records.database.engine import reading
from muster.records.database.models import Event, FindingRow, Node, Run, StageRecord
from muster_criteria.model import Severity, Verdict
from muster_reports.digest import facts


def fleet_facts(
    since: datetime.datetime, until: datetime.datetime, *, simulated: bool = False, labels: dict[str, str] | None = None
) -> facts.Facts:
    """The facts of the nodes that have all of ``labels``, real or simulated ones."""
    with reading() as session:
        passed = (
            select(Run.node, func.max(Run.ended_at).label("at"))
            .where(Run.verdict.in_([str(Verdict.PASS), str(Verdict.WARN)]), Run.ended_at <= until)
            .group_by(Run.node)
            .subquery()
        )
        query = select(Node, passed.c.at).outerjoin(passed, passed.c.node == Node.name)
        nodes = {
            node.name: facts.Node(node.name, node.sku, node.rack, node.state, node.added_at, at)
            for node, at in session.execute(query.where(Node.simulated == simulated, Node.added_at < until))
            if (labels or {}).items() <= node.labels.items()
        }
        entered = (
            select(Event.node, func.min(Event.at))
            .where(Event.to_state == "production", Event.from_state != "production")
            .group_by(Event.node)
        )
        delivered = {name: at for name, at in session.execute(entered) if name in nodes and since <= at < until}
        events = select(Event).where(Event.at >= since, Event.at < until, Event.from_state != Event.to_state)
        moves = [
            facts.Move(row.node, row.at, row.from_state, row.to_state, row.reason)
            for row in session.scalars(events.order_by(Event.at, Event.id))
        ]
        ended = select(Run).where(Run.ended_at >= since, Run.ended_at < until, Run.verdict.is_not(None))
        runs = [
            facts.Run(run.node, run.run_id, str(run.verdict), run.headline, run.started_at, run.ended_at)
            for run in session.scalars(ended)
            if run.ended_at is not None
        ]
        critical = (
            select(Run.node, FindingRow.fault_class, FindingRow.device, Run.run_id)
            .join(StageRecord, FindingRow.stage == StageRecord.id)
            .join(Run, StageRecord.run == Run.id)
            .where(
                Run.ended_at >= since,
                Run.ended_at < until,
                Run.verdict == str(Verdict.FAIL),
                StageRecord.current,
                FindingRow.severity == str(Severity.CRITICAL),
                FindingRow.waived == "",
            )
        )
        faults = [facts.Fault(*row) for row in session.execute(critical)]
    return facts.Facts(since, until, nodes, moves, runs, faults, delivered)
