"""Tables of decisions: waivers, certificates, questions. Internal to ``muster.store``, as ``models``."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import ColumnElement, ForeignKey, Index, UniqueConstraint, literal, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.store.database.base import Base, BigId


class WaiverRow(Base):
    """A person's decision that a known finding does not fail its stage until a date; every report shows it.

    ``end_seen``: whether the nodes concerned were asked about since it ended by itself. ``observed`` and
    ``extents``: as ``Waiver`` has them.
    """

    __tablename__ = "waivers"

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), index=True)
    machine: Mapped[int]
    rule: Mapped[str]
    metric: Mapped[str]
    device: Mapped[str]
    severity: Mapped[str]
    reason: Mapped[str]
    person: Mapped[str]
    created_at: Mapped[datetime.datetime]
    until: Mapped[datetime.datetime]
    revoked_at: Mapped[datetime.datetime | None]
    end_seen: Mapped[bool] = mapped_column(default=False)
    finding_id: Mapped[str]
    subject: Mapped[str] = mapped_column(index=True)
    labels: Mapped[dict[str, Any]]
    observed: Mapped[str]
    extents: Mapped[list[Any]]


class CertificateRow(Base):
    """A certificate of admission. ``number``: its place among the node's, which decides what is newest.

    ``certified``: the serials, driver and firmware in it; ``revoked``: why, or ""; ``revoked_after``: the node's last
    stage then; ``public_key``: of the key that signed it, in PEM.
    """

    __tablename__ = "certificates"
    __table_args__ = (
        UniqueConstraint("node", "number"),
        Index("ix_certificates_unrevoked", "node", "machine", "expires_at",
              sqlite_where=text("revoked = ''"), postgresql_where=text("revoked = ''")),
    )  # fmt: skip

    id: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"))
    number: Mapped[int]
    machine: Mapped[int]
    issued_at: Mapped[datetime.datetime]
    expires_at: Mapped[datetime.datetime]
    verdict: Mapped[str]
    tested_since: Mapped[datetime.datetime | None]
    certified: Mapped[dict[str, Any]]
    revoked: Mapped[str] = mapped_column(default="")
    revoked_at: Mapped[datetime.datetime | None]
    revoked_after: Mapped[int | None] = mapped_column(BigId)
    document: Mapped[str] = mapped_column(deferred=True)
    public_key: Mapped[str] = mapped_column(deferred=True)


def unrevoked() -> ColumnElement[bool]:
    """Whether a certificate is not revoked; without a parameter, so that SQLite uses the partial index."""
    return CertificateRow.revoked == literal("", literal_execute=True)


class QuestionRow(Base):
    """A question to a person about a node, put by one DAG run, and its answer. ``mailed``: it was mailed to people.

    ``about``: what the node's newest evidence was when it was put (``muster.store.decisions.questions``). ``option``,
    ``person`` and ``reason`` are the answer's, as Airflow delivered it with the login that gave it. ``settled_at``:
    when the answer was carried out. ``run_after``: as in ``RunRow``.
    """

    __tablename__ = "questions"
    __table_args__ = (UniqueConstraint("dag_id", "run_id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    dag_id: Mapped[str]
    run_id: Mapped[str]
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), index=True)
    asked_at: Mapped[datetime.datetime]
    run_after: Mapped[datetime.datetime | None]
    about: Mapped[str]
    subject: Mapped[str] = mapped_column(default="")
    options: Mapped[list[Any]] = mapped_column(default=list)
    mailed: Mapped[bool] = mapped_column(default=False)
    option: Mapped[str] = mapped_column(default="")
    person: Mapped[str] = mapped_column(default="")
    reason: Mapped[str] = mapped_column(default="")
    answered_at: Mapped[datetime.datetime | None]
    settled_at: Mapped[datetime.datetime | None]
