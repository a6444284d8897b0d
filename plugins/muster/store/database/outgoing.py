"""Tables of what leaves the records: mails, changes of schedulers, how far the audit stream has got."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.store.database.base import Base, BigId


class OutboxRow(Base):
    """A mail to be sent, one per key. ``due_at``: when it is first due. ``retry_at``: the earliest time of the next
    try. ``parked_at``: since when it is no longer tried, because the mail server refused it for good.
    ``claimed_until``: until when one process has it for sending. ``recipients``: those that still need it, separated by
    commas, once the mail server refused some; "": all in its header ``To``. ``lines``: {what it is about: line} of a
    list that grows while it waits.
    """

    __tablename__ = "outbox"
    __table_args__ = (
        Index("ix_outbox_unsent", "id",
              sqlite_where=text("sent_at IS NULL"), postgresql_where=text("sent_at IS NULL")),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    message: Mapped[bytes]
    created_at: Mapped[datetime.datetime]
    due_at: Mapped[datetime.datetime]
    sent_at: Mapped[datetime.datetime | None]
    retry_at: Mapped[datetime.datetime | None]
    parked_at: Mapped[datetime.datetime | None]
    claimed_until: Mapped[datetime.datetime | None]
    attempts: Mapped[int] = mapped_column(default=0)
    last_error: Mapped[str] = mapped_column(default="")
    recipients: Mapped[str] = mapped_column(default="")
    lines: Mapped[dict[str, Any]] = mapped_column(default=dict)


class PlaceRow(Base):
    """A node's place in a scheduler, what the records want there, and what has been confirmed there.

    ``cluster`` and ``name``: the configured backend, and the node's name in it. ``wanted``: "admitted",
    "withdrawn", or "" (left alone: in shadow mode). While it differs from ``done``, the change waits. ``why``: its
    reason; ``done_why``: the reason with which ``done`` was confirmed, which the scheduler shows. ``lifted``: Muster's
    drain that the last admission lifted, in case the scheduler forgets that. ``claimed_until``: until when one process
    has the change for itself; after a failure, the time of the failure. ``difference``: what the scheduler shows
    instead. ``question``: what a person has to look at. ``verify``: a person's drain that requests a test, since
    ``verify_since``. ``test_job``: the name of the job that tests the node, "" if none; ``preempted``: whether the
    scheduler ended that job before Muster did. ``shown``: how housekeeping last saw the node there ("open", "closed:
    root: bad fan", "down"), since ``shown_since``; "" before. ``held_since``: when these records were restored, None
    once it is known that they may open the node.
    """

    __tablename__ = "scheduler_places"
    __table_args__ = (UniqueConstraint("cluster", "name"),)

    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), primary_key=True)
    cluster: Mapped[str]
    name: Mapped[str]
    wanted: Mapped[str]
    why: Mapped[str]
    wanted_at: Mapped[datetime.datetime]
    done: Mapped[str] = mapped_column(default="")
    done_at: Mapped[datetime.datetime | None]
    done_why: Mapped[str] = mapped_column(default="")
    lifted: Mapped[str] = mapped_column(default="")
    claimed_until: Mapped[datetime.datetime | None]
    attempts: Mapped[int] = mapped_column(default=0)
    last_error: Mapped[str] = mapped_column(default="")
    difference: Mapped[str] = mapped_column(default="")
    question: Mapped[str] = mapped_column(default="")
    verify: Mapped[str] = mapped_column(default="")
    verify_since: Mapped[datetime.datetime | None]
    test_job: Mapped[str] = mapped_column(default="")
    preempted: Mapped[bool] = mapped_column(default=False)
    shown: Mapped[str] = mapped_column(default="")
    shown_since: Mapped[datetime.datetime | None]
    held_since: Mapped[datetime.datetime | None]


class UsersJobRow(Base):
    """A user's job on a node, as its scheduler listed it; ``until`` is None while it runs.

    ``listed_at``: when it was last listed as running. A job that is no longer listed, and whose end was not given,
    ended by the present look, or at ``listed_at`` if that is long ago: weeks may lie between two looks.
    """

    __tablename__ = "users_jobs"
    __table_args__ = (
        UniqueConstraint("node", "what", "since"),
        Index("ix_users_jobs_cluster_until", "cluster", "until"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"))
    cluster: Mapped[str]
    what: Mapped[str]
    since: Mapped[datetime.datetime]
    until: Mapped[datetime.datetime | None]
    listed_at: Mapped[datetime.datetime]


class AuditCursorRow(Base):
    """How far a receiver of the audit stream has got. ``event``: id of the last event that it accepted.

    ``last_error``: why the next ones were not accepted, "" while all is well.
    """

    __tablename__ = "audit_cursors"

    sink: Mapped[str] = mapped_column(primary_key=True)
    event: Mapped[int] = mapped_column(BigInteger, default=0)
    last_error: Mapped[str] = mapped_column(default="")
