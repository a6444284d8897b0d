"""What happened to the fleet in a period, for its digest."""

from __future__ import annotations

import collections
import datetime
import shlex

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from muster.lifecycle.certificate import WATCHED
from muster.records.database.engine import reading
from muster.records.database.models import Event, FindingRow, Node, Run, StageRecord
from muster_criteria.model import Severity, Verdict
from muster_reports.digest import facts


def fleet_facts(
    since: datetime.datetime, until: datetime.datetime, *, simulated: bool = False, labels: dict[str, str] | None = None
) -> facts.Facts:
    """The facts of the nodes that have all of ``labels``, real or simulated ones.

    The vendor of a node is its label ``vendor``, else who made the machine, as its firmware says.
    """
    chosen = labels or {}
    scope = [*(["--simulated"] if simulated else []), *(f"--label={name}={text}" for name, text in chosen.items())]
    with reading() as session:
        passed = (
            select(Run.node, func.max(Run.ended_at).label("at"))
            .where(Run.verdict.in_([str(Verdict.PASS), str(Verdict.WARN)]), Run.ended_at <= until)
            .group_by(Run.node)
            .subquery()
        )
        reported = _environments(session)
        query = select(Node, passed.c.at).outerjoin(passed, passed.c.node == Node.name)
        nodes = {
            node.name: facts.Node(
                node.name,
                node.sku,
                node.rack,
                node.state,
                node.added_at,
                at,
                str(node.labels.get("vendor") or reported.get(node.name, {}).get("vendor") or facts.UNKNOWN),
                {part: text for part, text in reported.get(node.name, {}).items() if part in WATCHED},
            )
            for node, at in session.execute(query.where(Node.simulated == simulated, Node.added_at < until))
            if chosen.items() <= node.labels.items()
        }
        entered = (
            select(Event.node, func.min(Event.at))
            .where(Event.to_state == "production", Event.from_state != "production")
            .group_by(Event.node)
        )
        # An adopted node served before Muster knew it: its way into production says nothing of a delivery.
        adopted = set(session.scalars(select(Event.node).where(Event.evidence["adopted"].as_boolean())))
        delivered = {
            name: at
            for name, at in session.execute(entered)
            if name in nodes and name not in adopted and since <= at < until
        }
        events = select(Event).where(Event.at >= since, Event.at < until, Event.from_state != Event.to_state)
        moves = [
            facts.Move(
                row.node,
                row.at,
                row.from_state,
                row.to_state,
                row.reason,
                row.evidence.get("verdict") == str(Verdict.FAIL),
            )
            for row in session.scalars(events.order_by(Event.at, Event.id))
        ]
        ended = select(Run).where(Run.ended_at >= since, Run.ended_at < until, Run.verdict.is_not(None))
        failed, tested = _stages(session, since, until)
        runs = [
            facts.Run(
                run.node,
                run.run_id,
                str(run.verdict),
                run.headline,
                run.started_at,
                run.ended_at,
                run.level,
                tuple(sorted(failed[run.id])),
                tested[run.id],
            )
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
    return facts.Facts(since, until, nodes, moves, runs, faults, delivered, shlex.join(scope))


def _environments(session: Session) -> dict[str, dict[str, str]]:
    """{node: {name: text}} of vendor, driver and firmware, from the run of each that measured intake last."""
    latest = (
        select(func.max(Run.id))
        .join(StageRecord, StageRecord.run == Run.id)
        .join(Node, Node.name == Run.node)
        .where(StageRecord.stage == "intake", StageRecord.measured > 0, Run.started_at >= Node.machine_since)
        .group_by(Run.node)
    )
    rows = session.execute(select(Run.node, Run.environment).where(Run.id.in_(latest)))
    return {
        node: {name: str(environment[name]) for name in (*WATCHED, "vendor") if environment.get(name)}
        for node, environment in rows
    }


def _stages(
    session: Session, since: datetime.datetime, until: datetime.datetime
) -> tuple[dict[int, set[str]], dict[int, float]]:
    """By run that ended in the period: the stages that failed, and the seconds of the period its stages took."""
    query = (
        select(StageRecord.run, StageRecord.stage, StageRecord.verdict, StageRecord.started_at, StageRecord.ended_at)
        .join(Run, StageRecord.run == Run.id)
        .where(Run.ended_at >= since, Run.ended_at < until, Run.verdict.is_not(None))
    )
    failed: dict[int, set[str]] = collections.defaultdict(set)
    tested: dict[int, float] = collections.defaultdict(float)
    for run, stage, verdict, begun, ended in session.execute(query):
        if verdict == str(Verdict.FAIL):
            failed[run].add(stage)
        if begun and ended:
            tested[run] += max(0.0, (ended - max(begun, since)).total_seconds())
    return failed, tested
