"""Tables of what is observed of nodes between tests, and of where the last sweep of each node ended."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from muster.store.database.base import Base, BigId
from muster_criteria.health.policy import HealthAction

COUNT_MAX = 2**63 - 1
"""The largest integer that the databases store: the counts that sources send, and their sums, are unbounded."""


class HealthRow(Base):
    """One check of one part in one boot and spell in service, by one source; what it sees again adds to ``count``.

    A state keeps its row through reboots until it is over, so ``boot_id`` is the boot in which it began. ``machine``:
    which machine of that name showed it; ``spell``: the node's spell in service, which lasts until the next begins, so
    that observations and actions from before a repair do not count after it. ``bad``: whether a state is bad now, as in
    ``muster.model.health.Track``; None for an event. ``state_at``: for an event, the time that its source gave for the
    last one. ``due_at``: since when ``action`` is due, set again by each new event and each return of a state;
    ``due_after``: the node's last stage then; ``acted``: what was done for it, "" for nothing yet. ``recent``: as in
    ``muster.model.health.Observation``, former boots too.
    """

    __tablename__ = "health"
    __table_args__ = (
        UniqueConstraint("node", "machine", "spell", "part", "check", "boot_id", "source"),
        Index("ix_health_last_seen", "last_seen"),
        Index("ix_health_source", "node", "machine", "source", "id"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"))
    machine: Mapped[int]
    spell: Mapped[int]
    part: Mapped[str]
    device: Mapped[str]
    check: Mapped[str]
    boot_id: Mapped[str]
    source: Mapped[str]
    value: Mapped[str]
    severity: Mapped[str]
    rate: Mapped[float | None]
    first_seen: Mapped[datetime.datetime]
    last_seen: Mapped[datetime.datetime]
    count: Mapped[int] = mapped_column(BigId)
    recent: Mapped[list[Any]] = mapped_column(default=list)
    most: Mapped[str]
    action: Mapped[str]
    due_at: Mapped[datetime.datetime]
    due_after: Mapped[int] = mapped_column(BigId, default=0)
    acted: Mapped[str] = mapped_column(default="")
    bad: Mapped[bool | None]
    state_since: Mapped[datetime.datetime | None]
    state_at: Mapped[datetime.datetime | None]
    down_s: Mapped[float] = mapped_column(default=0.0)
    flaps: Mapped[int] = mapped_column(default=0)
    over: Mapped[bool] = mapped_column(default=False)


ENDED = {"bad": False, "over": True, "action": HealthAction.NOTE, "acted": ""}
"""Columns of a state that ended without a good reading."""


class SweepRow(Base):
    """Where the last sweep of a machine ended, as ``muster.model.health.Cursor`` has it."""

    __tablename__ = "sweeps"

    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), primary_key=True)
    machine: Mapped[int]
    boot_id: Mapped[str]
    kernel_s: Mapped[float]
    counters: Mapped[dict[str, Any]]
    swept_at: Mapped[datetime.datetime | None]


class BmcRow(Base):
    """Where the last reading of a machine's BMC ended, as ``muster.model.health.BmcCursor`` has it.

    ``keys``: of the log entries that were read; ``logs``: those that were read whole, and ``present``: power supplies
    that were there, since the node's spell in service began.
    """

    __tablename__ = "bmcs"

    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), primary_key=True)
    machine: Mapped[int]
    keys: Mapped[list[Any]]
    logs: Mapped[list[Any]]
    present: Mapped[list[Any]]
    tried_at: Mapped[datetime.datetime | None]
    read_at: Mapped[datetime.datetime | None]
