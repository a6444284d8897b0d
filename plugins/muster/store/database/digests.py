"""Tables of result digests, of goldens and of parts that corrupted data."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.store.database.base import Base, BigId


class _Comparable:
    """A digest of an operation's bits. ``golden_id`` identifies all that must be equal for bits to be comparable:
    ``key``, ``op``, real or simulated.
    """

    golden_id: Mapped[str]
    key: Mapped[str]
    op: Mapped[str]
    simulated: Mapped[bool]
    digest: Mapped[str]


class DigestRow(_Comparable, Base):
    """Bits that a device gave for an operation; ``subject`` is the part (``waivers.subject_of``)."""

    __tablename__ = "digests"
    # An id that retention freed must not be reused: ids tell what was seen after a golden ended.
    __table_args__ = (Index("ix_digests_golden_id_subject", "golden_id", "subject"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    subject: Mapped[str]
    device: Mapped[str]
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"))
    machine: Mapped[int]
    dag_id: Mapped[str]
    run_id: Mapped[str]
    seen_at: Mapped[datetime.datetime]


class GoldenRow(_Comparable, Base):
    """The digest that devices agreed on. Withdrawing ends it; digests seen before that no longer count.

    A key that is withdrawn before it had a golden has a row without a digest. ``ended_after``: the last digest
    (``DigestRow.id``) by then.
    """

    __tablename__ = "goldens"
    __table_args__ = (
        Index("uq_goldens_golden_id_current", "golden_id", unique=True,
              sqlite_where=text("withdrawn_at IS NULL"), postgresql_where=text("withdrawn_at IS NULL")),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    promoted_at: Mapped[datetime.datetime]
    agreed: Mapped[list[Any]]
    withdrawn_at: Mapped[datetime.datetime | None]
    ended_after: Mapped[int] = mapped_column(BigId, default=0)
    withdrawn_by: Mapped[str] = mapped_column(default="")
    withdrawn_login: Mapped[str] = mapped_column(default="")
    withdrawn_reason: Mapped[str] = mapped_column(default="")


class SuspectRow(Base):
    """A part that corrupted data once, with the finding. Only the end of its golden removes it, no later test."""

    __tablename__ = "suspects"

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    subject: Mapped[str] = mapped_column(index=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), index=True)
    machine: Mapped[int]
    device: Mapped[str]
    stage: Mapped[str]
    dag_id: Mapped[str]
    run_id: Mapped[str]
    since: Mapped[datetime.datetime]
    finding_id: Mapped[str]
    finding: Mapped[dict[str, Any]]
