"""Mails waiting to be sent: stored first, so that none is lost while the mail server is down."""

from __future__ import annotations

import datetime

from sqlalchemy import func, or_, select

from muster.records.database import access
from muster.records.database.engine import reading, writing
from muster.records.database.models import Outbox
from muster.records.values import OutboxMessage, ParkedMail

RETRY_FIRST = datetime.timedelta(minutes=4)
"""Less than the five minutes between two deliveries of the housekeeping DAG."""

RETRY_MAX = datetime.timedelta(hours=6)


def outbox_add(key: str, message: bytes) -> str:
    """Put a mail in the outbox: "added", or "replaced" if one of that key was still waiting, or "sent already".

    ``key`` names what the mail is about ("node_qualification/gpu-0001__new"), so that a retry does not mail twice.
    """
    with writing() as session:
        row = session.scalar(select(Outbox).where(Outbox.key == key).with_for_update())
        if row is None:
            session.add(Outbox(key=key, message=message, created_at=access.now(), attempts=0, last_error=""))
            return "added"
        if row.sent_at is not None:
            return "sent already"
        row.message, row.retry_at, row.parked_at = message, None, None
        return "replaced"


def outbox_pending(limit: int = 100, *, due: bool = False, key: str | None = None) -> list[OutboxMessage]:
    """The mails that wait to be sent, oldest first, without their bytes: a hundred whole mails are 600 MB.

    With ``due`` those alone that may be tried now, with ``key`` the one of that key.
    """
    columns = (Outbox.id, Outbox.key, Outbox.created_at, Outbox.attempts, Outbox.last_error)
    query = select(*columns).where(Outbox.sent_at.is_(None), Outbox.parked_at.is_(None))
    if key is not None:
        query = query.where(Outbox.key == key)
    if due:
        query = query.where(or_(Outbox.retry_at.is_(None), Outbox.retry_at <= access.now()))
    with reading() as session:
        return [OutboxMessage(*row) for row in session.execute(query.order_by(Outbox.id).limit(limit))]


def outbox_message(message_id: int) -> bytes:
    """The bytes of one mail in the outbox."""
    with reading() as session:
        return session.scalars(select(Outbox.message).where(Outbox.id == message_id)).one()


def outbox_parked(limit: int = 100) -> list[ParkedMail]:
    """The mails that the mail server refused for good, oldest first."""
    query = select(Outbox.key, Outbox.parked_at, Outbox.last_error).where(Outbox.parked_at.is_not(None))
    with reading() as session:
        rows = session.execute(query.order_by(Outbox.id).limit(limit))
        return [ParkedMail(key, parked_at, error) for key, parked_at, error in rows if parked_at]


def outbox_waiting(key: str | None = None) -> int:
    """How many mails wait to be sent, of all or of ``key``."""
    waiting = select(func.count()).where(Outbox.sent_at.is_(None), Outbox.parked_at.is_(None))
    if key is not None:
        waiting = waiting.where(Outbox.key == key)
    with reading() as session:
        return session.scalar(waiting) or 0


def outbox_sent(message_id: int) -> None:
    """Mark the mail as accepted by the mail server."""
    with writing() as session:
        row = session.get_one(Outbox, message_id)
        row.sent_at, row.attempts, row.last_error = access.now(), row.attempts + 1, ""


def outbox_failed(message_id: int, error: str, *, park: bool = False) -> None:
    """Record that sending failed, and why: the mail waits twice as long as before, or is parked."""
    with writing() as session:
        row = session.get_one(Outbox, message_id)
        row.retry_at = access.now() + min(RETRY_FIRST * 2 ** min(row.attempts, 10), RETRY_MAX)
        row.parked_at = access.now() if park else None
        row.attempts, row.last_error = row.attempts + 1, error
