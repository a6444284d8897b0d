"""The fleet in figures, for metrics: few queries, each over an index, in one transaction."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, and_, case, cast, exists, extract, func, or_, select
from sqlalchemy.orm import Session

from muster.model.dags import BURN_POOL, NODE_QUALIFICATION, SWEPT_EVERY
from muster.model.figures import DURATIONS_S, GIVE_BACK_S, FleetFigures, NodeFigures, Spread, Waiting
from muster.model.schedulers import ADMITTED, REPEATED
from muster.model.states import SERVING
from muster.store.database import access
from muster.store.database.batches import batches
from muster.store.database.decisions import CertificateRow, unrevoked
from muster.store.database.engine import reading
from muster.store.database.health import SweepRow
from muster.store.database.models import EventRow, FindingRow, JobRow, LeaseRow, NodeRow, RunRow
from muster.store.database.models import StageRow as Stage
from muster.store.database.outgoing import OutboxRow, PlaceRow
from muster.store.decisions import verdicts
from muster.store.decisions.withdrawals import breaker_now
from muster.store.fleet import health
from muster.store.machines import leases
from muster.store.output import attention as attending
from muster.store.output import numbers, rank_times
from muster.store.queues import audit
from muster.store.queues.outbox import tried
from muster.store.testing.runs import last_run_id
from muster_criteria.context.suspicion import CORRUPTING
from muster_criteria.health.policy import HealthPolicy
from muster_criteria.model import Severity, Verdict

WINDOW = datetime.timedelta(hours=24)
"""Runs, findings and durations are those of the last WINDOW: retention deletes rows, so totals could fall."""


def fleet(policy: HealthPolicy) -> FleetFigures:
    """The figures that the metrics show; ``breakers`` by whether the nodes are simulated.

    ``policy``: decides which observations report corrupted data.
    """
    now = access.now()
    recent = now - WINDOW
    ended = and_(RunRow.ended_at >= recent, RunRow.verdict.is_not(None))
    recorded = and_(Stage.recorded_at >= recent, Stage.current)
    unsent = OutboxRow.sent_at.is_(None)
    attention, reported = attending.collect(), health.corrupted(recent, policy)
    unconfirmed = and_(PlaceRow.wanted != "", PlaceRow.wanted != PlaceRow.done)
    with reading() as session:
        nodes = _nodes(session, now)
        kinds = {node.simulated for node in nodes} or {False}
        mails = session.execute(
            select(
                func.count(),
                func.count(OutboxRow.parked_at),
                func.min(OutboxRow.due_at).filter(OutboxRow.parked_at.is_(None)),
            ).where(unsent, tried())
        ).one()
        return FleetFigures(
            at=now, nodes=nodes, breakers={kind: breaker_now(session, simulated=kind) for kind in kinds},
            findings=_counts(
                session,
                select(Stage.stage, FindingRow.fault_class, FindingRow.severity, RunRow.simulated, func.count())
                .join(Stage, FindingRow.stage == Stage.id)
                .join(RunRow, RunRow.id == Stage.run)
                .where(recorded, FindingRow.waived == ""),
            ),
            corrupting=_corrupting(session, recorded, reported),
            stage_durations=_spread(
                session, DURATIONS_S, Stage.started_at, Stage.ended_at,
                and_(recorded, RunRow.id == Stage.run), Stage.stage, Stage.level, RunRow.simulated,
            ),
            run_durations=_spread(
                session, DURATIONS_S, RunRow.started_at, RunRow.ended_at,
                ended, RunRow.dag_id, RunRow.level, RunRow.verdict, RunRow.simulated,
            ),
            controller_faults=dict(session.execute(
                select(RunRow.simulated, func.count()).group_by(RunRow.simulated)
                .where(ended, RunRow.verdict == Verdict.SKIPPED, cast(RunRow.faults, Text) != "{}")
            ).all()),
            give_back=_spread(
                session, GIVE_BACK_S, PlaceRow.wanted_at, PlaceRow.done_at,
                and_(PlaceRow.done_at >= recent, PlaceRow.done == ADMITTED, PlaceRow.wanted == ADMITTED,
                     PlaceRow.done_why != REPEATED),
                PlaceRow.cluster,
            ),
            tests=_waiting(
                session, leases.under_way_since(),
                and_(LeaseRow.released_at.is_(None), LeaseRow.node == NodeRow.name), LeaseRow.dag_id, NodeRow.simulated,
            ),
            mails=Waiting({(): mails[0] - mails[1]}, {(): mails[2]} if mails[2] else {}),
            parked=mails[1],
            changes=_waiting(session, PlaceRow.wanted_at, unconfirmed, PlaceRow.cluster, PlaceRow.wanted),
            differences=_waiting(session, _differs_since(), or_(PlaceRow.difference != "", PlaceRow.question != "")),
            audit=tuple(audit.of_session(session)),
            attention=tuple(attention),
            numbers=tuple(numbers.of_session(session)),
            ranks=rank_times.of_session(session, recent),
            pools=_pools(session),
            untested_since=_untested_since(session, nodes),
            uncertified_since=_uncertified_since(session, nodes),
            unswept_since=_unswept_since(session, now),
        )  # fmt: skip


def _corrupting(
    session: Session, recorded: ColumnElement[bool], reported: collections.Counter[tuple[str, bool]]
) -> dict[tuple[str, ...], int]:
    """{(metric or check, whether simulated): number} of critical findings of corrupted data, plus the ``reported``
    observations of it.
    """
    found = select(FindingRow.metric, RunRow.simulated, func.count()).join(Stage, FindingRow.stage == Stage.id)
    found = found.join(RunRow, RunRow.id == Stage.run).where(
        recorded, FindingRow.waived == "", FindingRow.severity == Severity.CRITICAL,
        FindingRow.metric.in_(sorted(CORRUPTING)),
    )  # fmt: skip
    counted = collections.Counter(_counts(session, found))
    counted.update({_labels(each): number for each, number in reported.items()})
    return dict(counted)


def _nodes(session: Session, now: datetime.datetime) -> tuple[NodeFigures, ...]:
    verdict = select(RunRow.verdict).where(RunRow.id == last_run_id())
    last = verdicts.last_tested((Verdict.PASS,), access.SOUND, until=now).subquery()
    of_node, *times = last.c
    valid = exists().where(
        CertificateRow.node == NodeRow.name, unrevoked(), CertificateRow.expires_at > now,
        CertificateRow.machine == NodeRow.machine,
    )  # fmt: skip
    query = select(
        NodeRow.name, NodeRow.sku, NodeRow.rack, NodeRow.state, NodeRow.simulated, NodeRow.shadow,
        NodeRow.held_run != "", func.coalesce(verdict.scalar_subquery(), ""),
        *times, valid, and_(NodeRow.paused_until.is_not(None), NodeRow.paused_until > now),
    ).outerjoin(last, of_node == NodeRow.name)  # fmt: skip
    return tuple(NodeFigures(*row) for row in session.execute(query.order_by(NodeRow.name)))


def _untested_since(session: Session, nodes: Sequence[NodeFigures]) -> dict[str, datetime.datetime]:
    untested = [each.name for each in nodes if each.state in SERVING and each.tested_at is None]
    return {name: at for some in batches(untested) for name, at in _entered(session, some).items()}


def _uncertified_since(session: Session, nodes: Sequence[NodeFigures]) -> dict[bool, datetime.datetime]:
    """{whether simulated: since when the longest uncertified of the nodes has had no valid certificate}."""
    kinds = {each.name: each.simulated for each in nodes if each.uncertified}
    row, since = CertificateRow, dict[bool, datetime.datetime]()
    ended = case((row.revoked_at < row.expires_at, row.revoked_at), else_=row.expires_at)
    query = select(row.node, func.max(ended)).join(NodeRow, NodeRow.name == row.node).group_by(row.node)
    for some in batches(list(kinds)):
        known = _entered(session, some)
        for name, at in session.execute(query.where(row.node.in_(some), row.machine == NodeRow.machine)):
            known[name] = max(at, known.get(name, at))
        for name, at in known.items():
            since[kinds[name]] = min(at, since.get(kinds[name], at))
    return since


def _unswept_since(session: Session, now: datetime.datetime) -> dict[bool, datetime.datetime]:
    """{whether simulated: since when the sweep has not read the node in service that has waited longest}.

    Counts nodes that no run holds and whose tests are not paused, each since it was read or could be read again.
    """
    row, sweep = NodeRow, SweepRow
    held = select(LeaseRow.id).where(LeaseRow.node == row.name, LeaseRow.released_at.is_(None))
    query = select(row.name, row.simulated, row.machine_since, row.paused_until, sweep.swept_at)
    query = query.outerjoin(sweep, and_(sweep.node == row.name, sweep.machine == row.machine))
    query = query.where(row.state.in_(SERVING), ~held.exists())
    found = session.execute(query.where(or_(row.paused_until.is_(None), row.paused_until <= now))).all()
    free = {each.name: max(filter(None, (each.machine_since, each.paused_until))) for each in found}
    late = [each.name for each in found if each.swept_at is None or each.swept_at < now - 2 * SWEPT_EVERY]
    ends = select(LeaseRow.node, func.max(LeaseRow.released_at).label("at")).group_by(LeaseRow.node)
    for some in batches(late):
        released = {each.node: each.at for each in session.execute(ends.where(LeaseRow.node.in_(some)))}
        for times in (_entered(session, some), released):
            free.update((name, max(at, free[name])) for name, at in times.items())
    since: dict[bool, datetime.datetime] = {}
    for each in found:
        at = max(filter(None, (each.swept_at, free[each.name])))
        since[each.simulated] = min(at, since.get(each.simulated, at))
    return since


def _entered(session: Session, nodes: Sequence[str]) -> dict[str, datetime.datetime]:
    """{node in service: when it entered it}."""
    last = select(func.max(EventRow.id)).where(EventRow.node.in_(nodes), access.ENTERS).group_by(EventRow.node)
    entries = select(EventRow.node, EventRow.at).where(EventRow.id.in_(last))
    return {row.node: row.at for row in session.execute(entries)}


def _differs_since() -> ColumnElement[Any]:
    """Since when a scheduler shows a node otherwise; a later confirmation there ended any earlier difference."""
    row = PlaceRow
    known = func.coalesce(row.shown_since, row.done_at, row.wanted_at)
    return case((row.done_at > row.shown_since, row.done_at), else_=known)


def _counts(session: Session, query: Select[*tuple[Any, ...]]) -> dict[tuple[str, ...], int]:
    """{labels: number} of a query whose last column counts."""
    *labels, _number = query.selected_columns
    return {_labels(row[:-1]): row[-1] for row in session.execute(query.group_by(*labels))}


def _labels(values: Iterable[str | bool]) -> tuple[str, ...]:
    return tuple(str(each).lower() if isinstance(each, bool) else each for each in values)


def _waiting(
    session: Session, since: ColumnElement[Any] | Any, where: ColumnElement[bool], *labels: ColumnElement[Any] | Any
) -> Waiting:
    rows = session.execute(select(*labels, func.count(), func.min(since)).where(where).group_by(*labels)).all()
    oldest = {_labels(row[:-2]): row[-1] for row in rows if row[-1] is not None}
    return Waiting({_labels(row[:-2]): row[-2] for row in rows}, oldest)


def _pools(session: Session) -> dict[tuple[str, ...], datetime.datetime]:
    """{(pool in which new nodes wait for their first job, whether they are simulated): when a new node last began one
    there, or since when they wait}.
    """
    of = case((NodeRow.pool == "", BURN_POOL), else_=NodeRow.pool), NodeRow.simulated
    held = select(*of, func.min(LeaseRow.acquired_at)).join(NodeRow, NodeRow.name == LeaseRow.node).group_by(*of)
    queued = held.where(LeaseRow.released_at.is_(None), leases.under_way_since().is_(None))
    waiting = {_labels(row[:2]): row[2] for row in session.execute(queued)}
    if not waiting:
        return {}
    # Runs that ended before the nodes began to wait have begun no job since.
    lately = or_(RunRow.ended_at.is_(None), RunRow.ended_at >= min(waiting.values()))
    jobs = select(*of, func.max(JobRow.started_at)).join(RunRow, RunRow.id == JobRow.run)
    begun = jobs.join(NodeRow, NodeRow.name == RunRow.node).where(RunRow.dag_id == NODE_QUALIFICATION, lately)
    last = {_labels(row[:2]): row[2] for row in session.execute(begun.group_by(*of)) if row[2] is not None}
    return {key: max(since, last.get(key, since)) for key, since in waiting.items()}


def _spread(
    session: Session,
    limits: Sequence[float],
    began: ColumnElement[Any] | Any,
    ended: ColumnElement[Any] | Any,
    where: ColumnElement[bool],
    *labels: ColumnElement[Any] | Any,
) -> tuple[Spread, ...]:
    """The durations of the rows that ``where`` selects, counted in the database: reading them would take seconds."""
    took = extract("epoch", ended) - extract("epoch", began)
    rows = select(*labels, took.label("seconds")).where(where, began.is_not(None), ended.is_not(None))
    # Materialised: otherwise PostgreSQL would compute the seconds again for each limit.
    each = rows.cte("each_one").prefix_with("MATERIALIZED")
    *names_of, seconds = each.c
    bucket = case(*((seconds <= limit, place) for place, limit in enumerate(limits)), else_=len(limits)).label("bucket")
    query = select(*names_of, bucket, func.count(), func.sum(seconds)).group_by(*names_of, bucket)
    found: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
    for *names, place, number, total in session.execute(query):
        counts, sums = found.setdefault(_labels(names), ([0] * (len(limits) + 1), []))
        counts[place] = number
        sums.append(float(total))
    return tuple(Spread(names, tuple(counts), sum(sums)) for names, (counts, sums) in sorted(found.items()))
