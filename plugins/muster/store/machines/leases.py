"""Leases: a node is leased by one run at a time, without expiry, under a fencing token that only grows."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from muster.errors import BadNode, NodeLeased, NodePaused
from muster.model.dags import NODE_QUALIFICATION
from muster.model.events import Evidence
from muster.model.nodes import Lease
from muster.model.runs import RunKey
from muster.model.states import IN_FLIGHT, State
from muster.rules.lifecycle.decisions import check_decision
from muster.rules.lifecycle.ending import undecided
from muster.store.database import access
from muster.store.database.batches import batches
from muster.store.database.engine import reading, writing
from muster.store.database.models import JobRow, LeaseRow, NodeRow, RunRow, StageRow
from muster.store.database.wanted import follow_state
from muster_criteria.model import Verdict
from muster_node.contract import END_FENCED

TOKEN_MAX = 2**40
"""Far above any valid token: tokens follow the seconds since 1970."""


def acquire(node: str, key: RunKey, *, decision: bool = False) -> Lease:
    """``acquire_all`` of one node."""
    return acquire_all([node], key, decision=decision)[0]


def acquire_all(nodes: Collection[str], key: RunKey, *, decision: bool = False) -> list[Lease]:
    """Take all the nodes of a block for a run, or none of them; returns the leases by node.

    Nodes that the run holds already keep their lease and token. ``decision``: the run carries out a person's decision
    and tests nothing, so it ignores a pause of the tests. Raises NodeLeased naming every holder, NodePaused naming
    every pause, UnknownNode.
    """
    taken, refusals, paused = [], [], []
    with writing() as session:
        # In one order, as everywhere: two blocks that share nodes cannot deadlock.
        for node in sorted(set(nodes)):
            row = access.node_row(session, node, lock=True)
            lease = access.live_lease(session, node)
            if lease is not None and RunKey.of(lease) != key:
                since = f"{lease.acquired_at:%Y-%m-%d %H:%M} UTC"
                refusals.append(f"{node} is leased by run {lease.run_id} of {lease.dag_id} since {since}")
                continue
            if lease is None and not decision and (pause := access.pause_of(row)):
                paused.append(f"the tests of {node} are {pause} (`muster node resume {node} --reason …` ends that)")
                continue
            if lease is None:
                row.fence = _next_token(row.fence)
                lease = LeaseRow(
                    node=node, dag_id=key.dag_id, run_id=key.run_id, token=row.fence, acquired_at=access.now()
                )
                session.add(lease)
                session.flush()
            taken.append(access.to_lease(lease))
        if refusals:
            raise NodeLeased(f"{', '.join(refusals)}; wait for that run, or end it in Airflow")
        if paused:
            raise NodePaused("; ".join(paused))
    return taken


def _next_token(last: int) -> int:
    """A token above ``last`` and above any that other records could have given for this node until now.

    Records that were restored, rebuilt or belong to a second controller may not know all tokens that the node has seen,
    but all of them know the time, and leases are more than a second apart.
    """
    return max(last + 1, int(access.now().timestamp()))


def raise_fence(node: str, seen: int, person: str, reason: str) -> int:
    """Make the node's next token higher than ``seen``, the highest that it has seen; returns the last token before.

    Raises NoPerson without a named person and a reason, BadNode for a token that no controller gives, UnknownNode.
    """
    check_decision(person, reason, f"the fence of {node} stays")
    if not seen < TOKEN_MAX:
        raise BadNode(
            f"{node} has the fencing token {seen}, which no controller gave: delete the file `fence` in its work "
            "folder while no test runs there"
        )
    with writing() as session:
        row = access.node_row(session, node, lock=True)
        before, row.fence = row.fence, max(row.fence, seen)
        text = f"the fence was raised from {before} to {row.fence}: {reason.strip()}"
        access.remark(session, row, person, text, {"person": person, "reason": reason.strip()})
        return before


def fenced_nodes() -> list[str]:
    """The nodes that refused their latest job as older than one they have seen, and were not leased since."""
    latest = select(func.max(StageRow.id)).group_by(StageRow.node)
    query = (
        select(NodeRow.name)
        .join(StageRow, StageRow.node == NodeRow.name)
        .join(JobRow, (JobRow.run == StageRow.run) & (JobRow.stage == StageRow.stage))
        .where(StageRow.id.in_(latest), StageRow.job_end == END_FENCED, JobRow.fence >= NodeRow.fence)
    )
    with reading() as session:
        return sorted(set(session.scalars(query)))


def lock(key: RunKey) -> list[str]:
    """Lock the nodes that the run holds until the caller's transaction ends; returns their names."""
    with writing() as session:
        held = select(LeaseRow.node).where(
            LeaseRow.dag_id == key.dag_id, LeaseRow.run_id == key.run_id, LeaseRow.released_at.is_(None)
        )
        names = sorted(session.scalars(held))
        access.lock_nodes(session, names)
        return [name for name in names if access.holds(session, name, key)]


def release(key: RunKey, reason: str) -> list[str]:
    """Free every node that the run holds, because it is over; returns their names.

    A node still in flight goes back to registered (or qualified), which a block's members are until they are admitted;
    one in revalidation waits there for the next. A run without a verdict is closed as INCONCLUSIVE. Harmless when
    nothing is leased.
    """
    with writing() as session:
        query = select(LeaseRow).where(
            LeaseRow.dag_id == key.dag_id, LeaseRow.run_id == key.run_id, LeaseRow.released_at.is_(None)
        )
        freed = [lease.node for lease in session.scalars(query.order_by(LeaseRow.node))]
        for name in freed:
            _free(session, name, key, reason)
        unfinished = select(RunRow).where(*access.of_run(key), RunRow.ended_at.is_(None))
        for run in session.scalars(unfinished.order_by(RunRow.node)):
            run.ended_at = max(access.now(), run.started_at)
            run.ended_place = access.last_stage(session, access.node_row(session, run.node))
            run.verdict = Verdict.INCONCLUSIVE
            judged = set(session.scalars(select(StageRow.stage).where(StageRow.run == run.id, StageRow.current)))
            run.headline = undecided(run.required_stages, judged, reason)
            run.state_after = access.node_row(session, run.node).state
    return freed


def of_another(key: RunKey, run_after: datetime.datetime | None) -> bool:
    """Whether the recorded run of that id is another Airflow's run. ``run_after``: that of our Airflow's run."""
    with reading() as session:
        rows = session.scalars(select(RunRow).where(*access.of_run(key)))
        return any(access.is_another(row, run_after) for row in rows)


def live(run: RunKey | None = None) -> list[Lease]:
    """Every lease that holds a node now, of ``run`` if one is named, by node."""
    query = select(LeaseRow).where(LeaseRow.released_at.is_(None)).order_by(LeaseRow.node)
    if run:
        query = query.where(LeaseRow.dag_id == run.dag_id, LeaseRow.run_id == run.run_id)
    with reading() as session:
        return [access.to_lease(row) for row in session.scalars(query)]


def holding(nodes: Collection[str]) -> dict[str, Lease]:
    """{node: the lease that holds it}, for those of these nodes that a run holds."""
    query = select(LeaseRow).where(LeaseRow.released_at.is_(None))
    with reading() as session:
        rows = (row for some in batches(nodes) for row in session.scalars(query.where(LeaseRow.node.in_(some))))
        return {row.node: access.to_lease(row) for row in rows}


def queued() -> set[str]:
    """The new nodes whose run has begun no job yet, because it waits for a slot."""
    held = select(LeaseRow.node).where(LeaseRow.released_at.is_(None), under_way_since().is_(None))
    with reading() as session:
        return set(session.scalars(held))


def under_way_since() -> ColumnElement[Any]:
    """When a lease's run began its last job, or else when it leased the node; NULL for a new node that waits for its
    turn, which may take weeks in a large delivery.
    """
    of_lease = (RunRow.dag_id == LeaseRow.dag_id, RunRow.run_id == LeaseRow.run_id, RunRow.node == LeaseRow.node)
    begun = select(func.max(JobRow.started_at)).join(RunRow, RunRow.id == JobRow.run).where(*of_lease)
    last = begun.correlate(LeaseRow).scalar_subquery()
    return case((LeaseRow.dag_id == NODE_QUALIFICATION, last), else_=func.coalesce(last, LeaseRow.acquired_at))


def get(node: str) -> Lease | None:
    """The lease that holds the node now, if any."""
    with reading() as session:
        row = access.live_lease(session, node)
        return access.to_lease(row) if row else None


def _free(session: Session, name: str, key: RunKey, reason: str) -> None:
    # Lock the node first, as everywhere: transactions that lock in the same order cannot deadlock.
    node = access.node_row(session, name, lock=True)
    lease = access.live_lease(session, name)
    if lease is None or RunKey.of(lease) != key:
        return
    lease.released_at = access.now()
    state = State(node.state)
    if state in IN_FLIGHT:
        back = State.QUALIFIED if state is State.CLUSTER_VALIDATION else State.REGISTERED
        evidence = Evidence(run=key, run_over=True)
        verdict = session.scalar(select(RunRow.verdict).where(*access.of_run(key), RunRow.node == name))
        end = (
            f"run {key.run_id} ended with {verdict}"
            if verdict
            else f"run {key.run_id} ended without a verdict ({reason})"
        )
        access.move(session, node, back, "muster", end, evidence)
    follow_state(session, node, f"run {key.run_id} is over: {reason}")
