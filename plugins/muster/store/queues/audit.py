"""The events as a stream for receivers outside: at least once, in order, with a cursor for each receiver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from muster.model.queues import AuditEvent, AuditLag
from muster.settings import settings
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow
from muster.store.database.outgoing import AuditCursorRow

LOCK_TIMEOUT_MS = 5000
"""How long to wait for the lock on events, behind which all writers wait; later, housekeeping tries again."""


def command(what: str, evidence: Mapping[str, Any]) -> None:
    """Record a manual action of the person in the settings that concerns no node. ``what``: the action, as a clause."""
    with writing() as session:
        access.write_remark(session, settings().who, what, evidence)


def batch(sink: str, limit: int) -> list[AuditEvent]:
    """The next events for the receiver, at most ``limit``, oldest first; a new receiver starts with the first event."""
    with writing() as session:
        if session.get_bind().dialect.name == "postgresql":
            # An id is given when a row is inserted and seen when that transaction ends: a lower id may appear after a
            # higher one. This lock waits for such transactions, and lasts for one query of an index.
            session.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
            session.execute(text("LOCK TABLE events IN SHARE MODE"))
        whole = session.scalar(select(func.max(EventRow.id))) or 0
    with reading() as session:
        after = session.scalar(select(AuditCursorRow.event).where(AuditCursorRow.sink == sink)) or 0
        query = select(EventRow).where(EventRow.id > after, EventRow.id <= whole).order_by(EventRow.id).limit(limit)
        return [_value(row) for row in session.scalars(query)]


def delivered(sink: str, event: int) -> None:
    """Store that the receiver has accepted everything up to this event; never moves back."""
    with writing() as session:
        if session.get(AuditCursorRow, sink, with_for_update=True) is None:
            session.add(AuditCursorRow(sink=sink, event=0, last_error=""))
            session.flush()
        of_sink = update(AuditCursorRow).where(AuditCursorRow.sink == sink)
        session.execute(of_sink.where(AuditCursorRow.event < event).values(event=event))
        session.execute(of_sink.values(last_error=""))


def failed(sink: str, error: str) -> None:
    """Store why the receiver did not accept the next events."""
    with writing() as session:
        row = session.get(AuditCursorRow, sink, with_for_update=True)
        if row is None:
            row = AuditCursorRow(sink=sink, event=0)
            session.add(row)
        row.last_error = error


def lags() -> list[AuditLag]:
    """What waits for each receiver of the settings."""
    with reading() as session:
        return of_session(session)


def of_session(session: Session) -> list[AuditLag]:
    """``lags`` within the caller's transaction."""
    lags = []
    for sink in sorted(settings().audit_sinks):
        row = session.get(AuditCursorRow, sink)
        waits = select(func.count(), func.min(EventRow.at)).where(EventRow.id > (row.event if row else 0))
        number, since = session.execute(waits).one()
        lags.append(AuditLag(sink, number, since, row.last_error if row else ""))
    return lags


def _value(row: EventRow) -> AuditEvent:
    kind = "audit" if row.from_state == row.to_state else "lifecycle"
    return AuditEvent(
        id=row.id, at=row.at.isoformat(), kind=kind, node=row.node or "", from_state=row.from_state,
        to_state=row.to_state, actor=row.actor, login=row.login, reason=row.reason, evidence=row.evidence,
    )  # fmt: skip
