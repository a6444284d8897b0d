"""Mails waiting to be sent: stored first, so that none is lost while the mail server is down."""

from __future__ import annotations

from sqlalchemy import select

from muster.records.database import access
from muster.records.database.engine import reading, writing
from muster.records.database.models import Outbox
from muster.records.values import OutboxMessage


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
        row.message = message
        return "replaced"


def outbox_pending(limit: int = 100) -> list[OutboxMessage]:
    """The mails that have not been sent, oldest first."""
    with reading() as session:
        rows = session.scalars(select(Outbox).where(Outbox.sent_at.is_(None)).order_by(Outbox.id).limit(limit))
        return [
            OutboxMessage(row.id, row.key, row.message, row.created_at, row.attempts, row.last_error) for row in rows
        ]


def outbox_sent(message_id: int) -> None:
    """Mark the mail as accepted by the mail server."""
    with writing() as session:
        row = session.get_one(Outbox, message_id)
        row.sent_at, row.attempts, row.last_error = access.now(), row.attempts + 1, ""


def outbox_failed(message_id: int, error: str) -> None:
    """Store why sending failed; the mail stays pending."""
    with writing() as session:
        row = session.get_one(Outbox, message_id)
        row.attempts, row.last_error = row.attempts + 1, error
