"""The latest users' jobs on each node, as its scheduler listed them, with their start and end."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from muster.model.dags import HOUSEKEEPING_EVERY
from muster.model.schedulers import UsersJob
from muster.store.database import access
from muster.store.database.batches import batches
from muster.store.database.engine import reading, writing
from muster.store.database.outgoing import PlaceRow, UsersJobRow

KEPT = 100
"""How many jobs of a node are kept, running ones before ended ones: users may start any number."""


def of_node(node: str) -> list[UsersJob]:
    """The jobs of a node that are kept, latest first."""
    latest = select(UsersJobRow).where(UsersJobRow.node == node).order_by(UsersJobRow.since.desc(), UsersJobRow.id)
    with reading() as session:
        return [UsersJob(row.node, row.what, row.since, row.until) for row in session.scalars(latest)]


def since(moments: Mapping[str, datetime.datetime]) -> dict[str, list[UsersJob]]:
    """{node: its jobs that ran at some time since that moment}."""
    found: dict[str, list[UsersJob]] = collections.defaultdict(list)
    if not moments:
        return found
    ran = or_(UsersJobRow.until.is_(None), UsersJobRow.until >= min(moments.values()))
    with reading() as session:
        for some in batches(moments):
            for row in session.scalars(select(UsersJobRow).where(UsersJobRow.node.in_(some), ran)):
                if row.until is None or row.until >= moments[row.node]:
                    found[row.node].append(UsersJob(row.node, row.what, row.since, row.until))
    return found


def note(cluster: str, listed: Iterable[UsersJob]) -> None:
    """Store the users' jobs that a scheduler lists on all of its nodes, by their names there.

    A job that is no longer listed ended now, so that errors of its last minutes count as under its load; if Muster was
    away for longer, it ended when it was last listed. Jobs on nodes without a place in the cluster are ignored.
    """
    with writing() as session:
        here = select(PlaceRow.name, PlaceRow.node).where(PlaceRow.cluster == cluster)
        nodes = {row.name: row.node for row in session.execute(here)}
        jobs = {(nodes[job.node], job.what, job.since): job.until for job in listed if job.node in nodes}
        running = select(UsersJobRow).where(UsersJobRow.cluster == cluster, UsersJobRow.until.is_(None))
        known = {_key(row): row for row in session.scalars(running)}
        moment = access.now()
        for key, row in known.items():
            row.until = jobs.get(key, _end(row, moment))
        session.flush()
        running_on = update(UsersJobRow).where(UsersJobRow.cluster == cluster, UsersJobRow.until.is_(None))
        session.execute(running_on.values(listed_at=moment), execution_options={"synchronize_session": False})
        fresh = collections.defaultdict(list)
        for key in jobs.keys() - known.keys():
            fresh[key[0]].append(key)
        for some in batches(sorted(fresh)):
            _add(session, cluster, {key: jobs[key] for node in some for key in fresh[node]}, some, moment)


_Key = tuple[str, str, datetime.datetime]


def _key(row: UsersJobRow) -> _Key:
    return row.node, row.what, row.since


def _end(row: UsersJobRow, moment: datetime.datetime) -> datetime.datetime:
    """The end of a job that is not listed any more."""
    return moment if moment - row.listed_at <= 2 * HOUSEKEEPING_EVERY else row.listed_at


def _add(
    session: Session,
    cluster: str,
    jobs: Mapping[_Key, datetime.datetime | None],
    nodes: Collection[str],
    moment: datetime.datetime,
) -> None:
    """Store the new jobs of these nodes; one that is stored as ended but still runs is opened again."""
    kept = {_key(row): row for row in session.scalars(select(UsersJobRow).where(UsersJobRow.node.in_(nodes)))}
    for (node, what, since), until in jobs.items():
        row = kept.get((node, what, since))
        if row is None:
            new = UsersJobRow(node=node, cluster=cluster, what=what, since=since, until=until, listed_at=moment)
            session.add(new)
        elif until is None:
            row.until, row.listed_at = None, moment
    session.flush()
    for node in nodes:
        mine = select(UsersJobRow.id).where(UsersJobRow.node == node)
        newest = mine.order_by(UsersJobRow.until.is_not(None), UsersJobRow.since.desc(), UsersJobRow.id.desc())
        session.execute(delete(UsersJobRow).where(UsersJobRow.id.in_(session.scalars(newest.offset(KEPT)).all())))


def close(session: Session, node: str) -> None:
    """End the jobs on a node that leaves its scheduler, which no longer lists them, in the caller's transaction."""
    for row in session.scalars(select(UsersJobRow).where(UsersJobRow.node == node, UsersJobRow.until.is_(None))):
        row.until = _end(row, access.now())
