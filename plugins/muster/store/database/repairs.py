"""Tables of incidents, with where their evidence is kept, and of the attempts to repair them."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.store.database.base import Base, BigId


class IncidentRow(Base):
    """One fault of one machine; at most one of a fault, device and part is open. ``missing``: what the bundle lacks.

    ``node``, ``machine`` and ``device``: where its part sits, or sat last. ``asks``: why a person has to decide, ""
    while Muster goes on by itself. ``waits``: why the next repair does not begin yet, as it was last seen at
    ``waits_at``. ``after``: the last stage of any node that was recorded before it was opened, or of its node before
    its part came there: the stages that prove its repair have higher ids.
    """

    __tablename__ = "incidents"
    __table_args__ = (
        Index("ix_incidents_node", "node"),
        Index("ix_incidents_part", "part"),
        Index("uq_incidents_open", "node", "machine", "fault_class", "device", "part", unique=True,
              sqlite_where=text("closed_at IS NULL"), postgresql_where=text("closed_at IS NULL")),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"))
    machine: Mapped[int]
    fault_class: Mapped[str]
    device: Mapped[str]
    part: Mapped[str]
    why: Mapped[str]
    simulated: Mapped[bool]
    prove: Mapped[list[Any]] = mapped_column(default=list)
    level: Mapped[str] = mapped_column(default="")
    opened_at: Mapped[datetime.datetime]
    after: Mapped[int] = mapped_column(BigId, default=0)
    closed_at: Mapped[datetime.datetime | None]
    bundle: Mapped[str] = mapped_column(default="")
    bundle_sha256: Mapped[str] = mapped_column(default="")
    bundle_bytes: Mapped[int] = mapped_column(BigId, default=0)
    missing: Mapped[list[Any]] = mapped_column(default=list)
    asks: Mapped[str] = mapped_column(default="")
    waits: Mapped[str] = mapped_column(default="")
    waits_at: Mapped[datetime.datetime | None]


class AttemptRow(Base):
    """One repair, reserved before it is carried out; one of a node at most is not over (``ended_at``). ``after``: the
    last stage of any node that was recorded before it ended: the stages that prove it have higher ids.
    """

    __tablename__ = "repair_attempts"
    __table_args__ = (
        Index("ix_repair_attempts_part", "part"),
        Index("uq_repair_attempts_open", "node", unique=True,
              sqlite_where=text("ended_at IS NULL"), postgresql_where=text("ended_at IS NULL")),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    incident: Mapped[int] = mapped_column(ForeignKey("incidents.id"), index=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), index=True)
    machine: Mapped[int]
    fault_class: Mapped[str]
    device: Mapped[str]
    part: Mapped[str]
    rung: Mapped[str]
    dag_id: Mapped[str] = mapped_column(default="")
    run_id: Mapped[str] = mapped_column(default="")
    reserved_at: Mapped[datetime.datetime]
    ended_at: Mapped[datetime.datetime | None]
    after: Mapped[int] = mapped_column(BigId, default=0)
    outcome: Mapped[str | None]
    detail: Mapped[str] = mapped_column(default="")
    proved: Mapped[bool | None]
    before: Mapped[str] = mapped_column(default="")
    ordered: Mapped[str] = mapped_column(default="")
    ordered_at: Mapped[datetime.datetime | None]
