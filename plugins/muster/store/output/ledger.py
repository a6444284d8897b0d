"""What happened to the fleet in a period, for its digest."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from muster.model.failures import Failure
from muster.model.nodes import Node
from muster.rules.lifecycle.certificate import WATCHED
from muster.rules.service import escapes, lemons, spares
from muster.store.database import access
from muster.store.database.batches import batches
from muster.store.database.engine import reading
from muster.store.database.models import EventRow, FindingRow, NodeRow, RunRow, StageRow
from muster.store.decisions import replacing, verdicts
from muster.store.fleet import failures, passes
from muster.store.machines import nodes as machines
from muster.store.testing import trainings
from muster_criteria.model import Severity, Verdict
from muster_reports.digest import facts


def fleet(
    since: datetime.datetime, until: datetime.datetime, *, simulated: bool = False, labels: dict[str, str] | None = None
) -> facts.Facts:
    """The facts about the real or simulated nodes that have all of ``labels``.

    The vendor of a node is its label ``vendor``, else the machine's maker according to its firmware. Faults, and moves
    to RMA, have the vendor and the firmware that the node had last reported by then.
    """
    found, failed, own = _lives(since, until, simulated=simulated, labels=labels or {})
    with reading() as session:
        passed = _passed(session, until)
        runs = _runs(session, since, until)
        faults = _faults(session, since, until)
    year = [each for each in failed if each.node in found.nodes and each.at < until]
    offenders = lemons.offenders(year, own, until)
    nodes = {name: dataclasses.replace(node, last_pass=passed.get(name)) for name, node in found.nodes.items()}
    return dataclasses.replace(found, nodes=nodes, runs=runs, faults=faults, offenders=offenders)


def lives(since: datetime.datetime, until: datetime.datetime, *, simulated: bool) -> facts.Facts:
    """The part of ``fleet`` that the fleet's numbers need: states, moves, repairs, escapes and spares, without runs and
    their faults."""
    return _lives(since, until, simulated=simulated, labels={})[0]


def _lives(
    since: datetime.datetime, until: datetime.datetime, *, simulated: bool, labels: dict[str, str]
) -> tuple[facts.Facts, list[Failure], list[Node]]:
    """(``lives``, a year's failures in service of all present machines, the nodes of ``lives``)."""
    scope = [*(["--simulated"] if simulated else []), *(f"--label={name}={text}" for name, text in labels.items())]
    query = select(NodeRow).where(NodeRow.simulated == simulated, NodeRow.added_at < until).order_by(NodeRow.name)
    with reading() as session:
        then = _states_at(session, until)
        nodes = {
            row.name: facts.Node(
                row.name, row.sku, row.rack, then.get(row.name, row.state), row.added_at, None,
                vendor=_vendor(row.labels, row.environment), versions=_versions(row.environment),
            )
            for row in session.scalars(query)
            if labels.items() <= row.labels.items()
        }  # fmt: skip
        moves = _moves(session, since, until)
    served = {name: at for name, at in failures.served(until, former=True).items() if name in nodes}
    delivered = {name: at for name, at in served.items() if since <= at}
    adopted = _adopted(delivered)
    delivered = {name: at for name, at in delivered.items() if name not in adopted}
    failed = failures.since(until - spares.PERIOD)
    year = [each for each in failed if each.node in nodes and each.at < until]
    # Where the machine itself was replaced, that was the repair.
    former = [
        each for each in failures.since(until - spares.PERIOD, former=True) if each.node in nodes and each.at < until
    ]
    own = [node for node in machines.find() if node.name in nodes]
    escaped = passes.missed(year)
    pools, jobs = _needs(own, served, former, until, simulated=simulated)
    made = facts.Facts(
        since, until, nodes, moves, [], [], delivered, shlex.join(scope),
        repairs=[facts.Repair(each.node, each.group, each.at, *_by(until, each.back, each.gone)) for each in former],
        escapes=_escapes(until, nodes, escaped, simulated=simulated), escaped=[_escaped(each) for each in escaped],
        served=served,
        pools=pools, jobs=jobs,
    )  # fmt: skip
    return made, failed, own


def _by(until: datetime.datetime, *moments: datetime.datetime | None) -> list[datetime.datetime | None]:
    """The moments, with None for those not before ``until``."""
    return [at if at is not None and at < until else None for at in moments]


def _adopted(nodes: Collection[str]) -> set[str]:
    """Those that served before Muster knew them: their entry into production says nothing about a delivery."""
    query = select(EventRow.node).where(EventRow.from_state != EventRow.to_state)
    query = query.where(EventRow.evidence["adopted"].as_boolean())
    with reading() as session:
        return {
            node for some in batches(sorted(nodes)) for node in session.scalars(query.where(EventRow.node.in_(some)))
        }


def _states_at(session: Session, until: datetime.datetime) -> dict[str, str]:
    """{node: its state at ``until``}, for nodes that were moved since."""
    moved = (EventRow.at >= until, EventRow.from_state != EventRow.to_state, EventRow.node.is_not(None))
    first = select(func.min(EventRow.id)).where(*moved).group_by(EventRow.node)
    return {
        row.node: row.from_state
        for row in session.execute(select(EventRow.node, EventRow.from_state).where(EventRow.id.in_(first)))
    }


def _passed(session: Session, until: datetime.datetime) -> dict[str, datetime.datetime | None]:
    """{node: its last pass by then}."""
    passed = verdicts.last_tested((Verdict.PASS, Verdict.WARN), until=until)
    return {row[0]: row[1] for row in session.execute(passed)}


def _moves(session: Session, since: datetime.datetime, until: datetime.datetime) -> list[facts.Move]:
    row = EventRow
    query = (
        select(
            row.id, row.node, row.at, row.from_state, row.to_state, row.reason, row.after,
            row.evidence["verdict"].as_string().label("verdict"),
        )
        .where(row.at >= since, row.at < until, row.from_state != row.to_state)
        .order_by(row.at, row.id)
    )  # fmt: skip
    found = session.execute(query).all()
    sent = {move.node for move in found if move.to_state == "rma"}
    labelled, past = _labels(session) if sent else {}, _past(session, sent, until)
    return [
        facts.Move(
            move.node, move.at, move.from_state, move.to_state, move.reason, move.verdict == Verdict.FAIL,
            *(_vendor(labelled[move.node], _at(past[move.node], move.at)), _suspected(session, move))
            if move.to_state == "rma" else ()
        )
        for move in found
    ]  # fmt: skip


def _suspected(session: Session, move: Any) -> str:
    """The fault class of the moved machine's last critical finding since it last entered service."""
    row = EventRow
    came = select(func.coalesce(func.max(row.after), 0)).where(row.node == move.node, row.id < move.id, access.ENTERS)
    replaced = select(func.count(row.id)).where(
        row.node == move.node, row.id > move.id, row.evidence["replaced"].as_boolean()
    )
    query = (
        select(FindingRow.fault_class)
        .join(StageRow, FindingRow.stage == StageRow.id)
        .join(NodeRow, NodeRow.name == FindingRow.node)
        .where(FindingRow.node == move.node, FindingRow.severity == Severity.CRITICAL, FindingRow.waived == "")
        .where(StageRow.machine == NodeRow.machine - replaced.scalar_subquery())
        .where(StageRow.current, StageRow.id > came.scalar_subquery(), StageRow.id <= move.after)
        .order_by(StageRow.id.desc(), FindingRow.id)
    )
    return session.scalar(query.limit(1)) or facts.UNKNOWN


def _runs(session: Session, since: datetime.datetime, until: datetime.datetime) -> list[facts.Run]:
    row = RunRow
    within = and_(row.ended_at >= since, row.ended_at < until, row.verdict.is_not(None))
    failed = select(row.node).where(within, row.verdict == Verdict.FAIL)
    before = select(func.max(row.id)).where(
        row.node.in_(failed), row.ended_at < since, row.verdict.in_(sorted(facts.CONCLUSIVE))
    )
    query = select(row.node, row.run_id, row.verdict, row.headline, row.started_at, row.ended_at, row.machine)
    return [
        facts.Run(node, run_id, str(verdict), headline, started, over, machine)
        for node, run_id, verdict, headline, started, over, machine in session.execute(
            query.where(or_(within, row.id.in_(before.group_by(row.node))))
        )
        if over is not None
    ]


def _faults(session: Session, since: datetime.datetime, until: datetime.datetime) -> list[facts.Fault]:
    query = (
        select(RunRow.node, FindingRow.fault_class, FindingRow.device, RunRow.run_id, RunRow.started_at)
        .join(StageRow, FindingRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(RunRow.ended_at >= since, RunRow.ended_at < until, RunRow.verdict == Verdict.FAIL)
        .where(StageRow.current, FindingRow.severity == Severity.CRITICAL, FindingRow.waived == "")
    )
    critical = list(session.execute(query))
    past, labelled = _past(session, {node for node, *_ in critical}, until), _labels(session)
    return [
        facts.Fault(node, part, device, run_id, _vendor(labelled[node], was), _versions(was))
        for node, part, device, run_id, began in critical
        for was in [_at(past[node], began)]
    ]


def _labels(session: Session) -> dict[str, Mapping[str, Any]]:
    return {row.name: row.labels for row in session.execute(select(NodeRow.name, NodeRow.labels))}


def _escaped(of: escapes.Escape) -> tuple[str, ...]:
    failure, passed = of.failure, of.passed
    at = facts.when(failure.at), facts.when(passed.at)
    return failure.node, failure.group, at[0], passed.level, passed.stage, at[1], passed.run_id


def _escapes(
    until: datetime.datetime, chosen: Collection[str], found: Sequence[escapes.Escape], *, simulated: bool
) -> list[facts.Escapes]:
    """How often tests passed nodes that failed in that year; passes from shortly before the year count too."""
    counts = passes.counts(until - spares.PERIOD - escapes.WITHIN, until, simulated=simulated)
    of = escapes.summed(count for node, count in counts.items() if node in chosen)
    return escapes.rates(found, of)


def _needs(
    nodes: Sequence[Node], served: Mapping[str, datetime.datetime], failed: Sequence[Failure],
    until: datetime.datetime, *, simulated: bool,
) -> tuple[list[facts.Pool], list[facts.Jobs]]:  # fmt: skip
    """The pools of the nodes with their present spares, and the inputs for forecasting jobs on them."""
    found = spares.pools(nodes, served, replacing.fell(), failed, until, spares.JOB_DAYS)
    return [pool for pool, _ in found], [
        facts.Jobs(pool.sku, pool.service, trainings.inputs(pool.sku, rates, until, simulated=simulated))
        for pool, rates in found
    ]


def _vendor(labels: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    return str(labels.get("vendor") or environment.get("vendor") or facts.UNKNOWN)


def _versions(environment: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(environment[name]) for name in WATCHED if environment.get(name)}


Past = list[tuple[datetime.datetime, Mapping[str, Any]]]
"""(when it began, the environment that it reported) for each run of a node that measured intake."""


def _past(session: Session, nodes: Collection[str], until: datetime.datetime) -> dict[str, Past]:
    """{node: its ``Past`` before ``until``}, also from earlier machines with the name."""
    query = (
        select(RunRow.node, RunRow.started_at, StageRow.environment)
        .join(StageRow, StageRow.run == RunRow.id)
        .where(RunRow.started_at < until, StageRow.stage == "intake", StageRow.measured > 0)
        .order_by(RunRow.id, StageRow.id)
    )
    found: dict[str, Past] = collections.defaultdict(list)
    for some in batches(sorted(nodes)):
        for node, began, environment in session.execute(query.where(RunRow.node.in_(some))):
            found[node].append((began, environment))
    return found


def _at(past: Past, at: datetime.datetime) -> Mapping[str, Any]:
    return next((environment for began, environment in reversed(past) if began <= at), {})
