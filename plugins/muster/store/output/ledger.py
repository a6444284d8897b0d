"""What happened to the fleet in a period, for its digest."""

from __future__ import annotations

import collections
import datetime
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from muster.model.failures import Failure
from muster.rules import escapes, spares
from muster.rules.certificate import WATCHED
from muster.store.database.engine import reading
from muster.store.database.models import EventRow, FindingRow, NodeRow, RunRow, StageRow
from muster.store.fleet import failures, passes
from muster.store.machines import nodes as machines
from muster.store.testing import trainings
from muster_criteria.model import Severity, Verdict
from muster_reports.digest import facts


def fleet(
    since: datetime.datetime, until: datetime.datetime, *, simulated: bool = False, labels: dict[str, str] | None = None
) -> facts.Facts:
    """The facts of the nodes that have all of ``labels``, real or simulated ones.

    The vendor of a node is its label ``vendor``, else who made the machine, as its firmware says. Faults, and moves to
    RMA, have the vendor and the firmware that the node reported last by then.
    """
    chosen = labels or {}
    scope = [*(["--simulated"] if simulated else []), *(f"--label={name}={text}" for name, text in chosen.items())]
    with reading() as session:
        passed = (
            select(RunRow.node, func.max(RunRow.ended_at).label("at"))
            .where(RunRow.verdict.in_([str(Verdict.PASS), str(Verdict.WARN)]), RunRow.ended_at <= until)
            .group_by(RunRow.node)
            .subquery()
        )
        reported = _environments(session)
        query = select(NodeRow, passed.c.at).outerjoin(passed, passed.c.node == NodeRow.name)
        nodes = {
            node.name: facts.Node(
                node.name,
                node.sku,
                node.rack,
                node.state,
                node.added_at,
                at,
                _vendor(node.labels, reported.get(node.name, {})),
                _versions(reported.get(node.name, {})),
            )
            for node, at in session.execute(query.where(NodeRow.simulated == simulated, NodeRow.added_at < until))
            if chosen.items() <= node.labels.items()
        }
        labelled = {row.name: row.labels for row in session.execute(select(NodeRow.name, NodeRow.labels))}
        entered = (
            select(EventRow.node, func.min(EventRow.at))
            .where(EventRow.to_state == "production", EventRow.from_state != "production")
            .group_by(EventRow.node)
        )
        # An adopted node served before Muster knew it: its way into production says nothing of a delivery.
        adopted = set(session.scalars(select(EventRow.node).where(EventRow.evidence["adopted"].as_boolean())))
        delivered = {
            name: at
            for name, at in session.execute(entered)
            if name in nodes and name not in adopted and since <= at < until
        }
        events = select(EventRow).where(
            EventRow.at >= since, EventRow.at < until, EventRow.from_state != EventRow.to_state
        )
        changes = list(session.scalars(events.order_by(EventRow.at, EventRow.id)))
        critical = list(session.execute(_critical(since, until)))
        concerned = {row.node for row in changes if row.to_state == "rma"} | {node for node, *_ in critical}
        past = _past(session, concerned, until)
        moves = [
            facts.Move(
                row.node,
                row.at,
                row.from_state,
                row.to_state,
                row.reason,
                row.evidence.get("verdict") == str(Verdict.FAIL),
                _vendor(labelled[row.node], _at(past[row.node], row.at)) if row.to_state == "rma" else facts.UNKNOWN,
            )
            for row in changes
        ]
        ended = select(RunRow).where(RunRow.ended_at >= since, RunRow.ended_at < until, RunRow.verdict.is_not(None))
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
        faults = [
            facts.Fault(node, part, device, run_id, _vendor(labelled[node], was), _versions(was))
            for node, part, device, run_id, began in critical
            for was in [_at(past[node], began)]
        ]
    failed_in_year = failures.since(until - spares.PERIOD)
    year = [each for each in failed_in_year if each.node in nodes and each.at < until]
    repairs = [facts.Repair(each.node, each.group, each.at, each.back) for each in year]
    found = spares.pools([node for node in machines.find() if node.name in nodes], year, until, spares.JOB_DAYS)
    jobs = [
        facts.Jobs(pool.sku, pool.service, trainings.inputs(pool.sku, pool.rates, until, simulated=simulated))
        for pool in found
    ]
    return facts.Facts(
        since, until, nodes, moves, runs, faults, delivered, shlex.join(scope), _pools(found), jobs, repairs,
        _escapes(until, nodes, year, simulated=simulated),
        # Of the whole fleet, whichever nodes are chosen: so the choice of idle tests uses them.
        passes.chances(failed_in_year, until, simulated=simulated),
    )  # fmt: skip


def _escapes(
    until: datetime.datetime, chosen: Collection[str], failed: Sequence[Failure], *, simulated: bool
) -> list[facts.Escapes]:
    """What tests of these nodes had let pass, of the same year."""
    since = until - spares.PERIOD
    found = passes.missed(failed, since)
    counts = passes.counts(since, simulated=simulated)
    of = escapes.summed(count for node, count in counts.items() if node in chosen)
    return escapes.rates(found, of)


def _pools(found: Sequence[spares.Pool]) -> list[facts.Pool]:
    """The spares of nodes as they are now."""
    return [
        facts.Pool(pool.sku, pool.service, pool.qualified, pool.rates.failures, pool.rates.repair_days, pool.days,
                   pool.needed, pool.covers)
        for pool in found
    ]  # fmt: skip


def _critical(since: datetime.datetime, until: datetime.datetime) -> Select[str, str, str, str, datetime.datetime]:
    return (
        select(RunRow.node, FindingRow.fault_class, FindingRow.device, RunRow.run_id, RunRow.started_at)
        .join(StageRow, FindingRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(
            RunRow.ended_at >= since,
            RunRow.ended_at < until,
            RunRow.verdict == str(Verdict.FAIL),
            StageRow.current,
            FindingRow.severity == str(Severity.CRITICAL),
            FindingRow.waived == "",
        )
    )


def _vendor(labels: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    return str(labels.get("vendor") or environment.get("vendor") or facts.UNKNOWN)


def _versions(environment: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(environment[name]) for name in WATCHED if environment.get(name)}


Past = list[tuple[datetime.datetime, Mapping[str, Any]]]
"""When each run of a node began that measured intake, and what it reported."""


def _past(session: Session, nodes: Collection[str], until: datetime.datetime) -> dict[str, Past]:
    """What was reported under these names, of earlier machines too."""
    query = (
        select(RunRow.node, RunRow.started_at, RunRow.environment)
        .join(StageRow, StageRow.run == RunRow.id)
        .where(RunRow.node.in_(nodes), RunRow.started_at < until, StageRow.stage == "intake", StageRow.measured > 0)
        .order_by(RunRow.id)
    )
    found: dict[str, Past] = collections.defaultdict(list)
    for node, began, environment in session.execute(query):
        found[node].append((began, environment))
    return found


def _at(past: Past, at: datetime.datetime) -> Mapping[str, Any]:
    return next((environment for began, environment in reversed(past) if began <= at), {})


def _environments(session: Session) -> dict[str, dict[str, str]]:
    """{node: {name: text}} of vendor, driver and firmware, from the run of each that measured intake last."""
    latest = (
        select(func.max(RunRow.id))
        .join(StageRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(StageRow.stage == "intake", StageRow.measured > 0, RunRow.machine == NodeRow.machine)
        .group_by(RunRow.node)
    )
    rows = session.execute(select(RunRow.node, RunRow.environment).where(RunRow.id.in_(latest)))
    return {
        node: {name: str(environment[name]) for name in (*WATCHED, "vendor") if environment.get(name)}
        for node, environment in rows
    }


def _stages(
    session: Session, since: datetime.datetime, until: datetime.datetime
) -> tuple[dict[int, set[str]], dict[int, float]]:
    """By run that ended in the period: the stages that failed, and the seconds of the period its stages took."""
    query = (
        select(StageRow.run, StageRow.stage, StageRow.verdict, StageRow.started_at, StageRow.ended_at)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(RunRow.ended_at >= since, RunRow.ended_at < until, RunRow.verdict.is_not(None))
    )
    failed: dict[int, set[str]] = collections.defaultdict(set)
    tested: dict[int, float] = collections.defaultdict(float)
    for run, stage, verdict, begun, ended in session.execute(query):
        if verdict == str(Verdict.FAIL):
            failed[run].add(stage)
        if begun and ended:
            tested[run] += max(0.0, (ended - max(begun, since)).total_seconds())
    return failed, tested
