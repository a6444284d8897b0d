"""Where the last reading of each machine's BMC ended, and which BMCs are due."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.model.health import BmcCursor
from muster.store.database.batches import batches
from muster.store.database.engine import reading
from muster.store.database.health import BmcRow
from muster.store.database.models import NodeRow
from muster_criteria.health.bmc import Known


def cursors(nodes: Iterable[str]) -> dict[str, BmcCursor]:
    """{node: where the last reading of its BMC ended}; an empty cursor for a machine whose BMC was never read."""
    names = list(nodes)
    query = select(BmcRow).join(NodeRow, NodeRow.name == BmcRow.node).where(BmcRow.machine == NodeRow.machine)
    with reading() as session:
        found = (row for some in batches(names) for row in session.scalars(query.where(BmcRow.node.in_(some))))
        kept = {row.node: _to_cursor(row) for row in found}
    return {name: kept.get(name, BmcCursor(name)) for name in names}


def due(nodes: Iterable[str], every_s: float, now: datetime.datetime) -> list[BmcCursor]:
    """Returns the cursors of the nodes whose BMC was not asked for ``every_s`` seconds, longest wait first."""
    beginning = datetime.datetime.min.replace(tzinfo=datetime.UTC)
    waits = [
        each
        for each in cursors(nodes).values()
        # A time in the future was written by a clock that has been set back since.
        if each.tried_at is None or not 0 <= (now - each.tried_at).total_seconds() < every_s
    ]
    return sorted(waits, key=lambda each: (each.tried_at or beginning, each.node))


def keep(session: Session, cursor: BmcCursor, node: NodeRow) -> None:
    """Stores where a reading ended."""
    row = session.get(BmcRow, cursor.node)
    if row is None:
        row = BmcRow(node=cursor.node)
        session.add(row)
    row.machine, row.tried_at, row.read_at = node.machine, cursor.tried_at, cursor.read_at
    known = cursor.known
    row.keys, row.logs, row.present = list(known.keys), list(known.logs), list(known.present)


def _to_cursor(row: BmcRow) -> BmcCursor:
    known = Known(*(tuple(map(str, kept)) for kept in (row.keys, row.logs, row.present)))
    return BmcCursor(row.node, known, row.tried_at, row.read_at)
