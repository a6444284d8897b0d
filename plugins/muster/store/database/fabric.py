"""Tables of the rounds of pairs of a block. Internal to ``muster.store``, as ``models``."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.store.database.base import Base, BigId


class RoundRow(Base):
    """One round of pairs of a block, as it was planned. ``run``: of the block's first member.

    ``pairs``: names, two each; ``reference_pairs``: how many of the last are of good nodes, to compare others with.
    """

    __tablename__ = "rounds"
    __table_args__ = (UniqueConstraint("run", "number"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    run: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    number: Mapped[int]
    kind: Mapped[str]
    pairs: Mapped[list[Any]]
    variants: Mapped[int]
    reference_pairs: Mapped[int]
    planned_at: Mapped[datetime.datetime]


class RoundSideRow(Base):
    """What one node returned of its pair in a round. ``run``: the node's own.

    ``outcome``: "measured"; "silent": it returned nothing; "unmeasured": a fault of the controller, or its scheduler
    took the node; ``why``: the reason. ``figures``: as ``muster_criteria.measured.Measured``. ``evidence``: kinds and
    sentences of what the controller itself established.
    """

    __tablename__ = "round_sides"
    __table_args__ = (UniqueConstraint("run", "number"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    run: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    number: Mapped[int]
    outcome: Mapped[str]
    why: Mapped[str]
    figures: Mapped[list[Any]]
    evidence: Mapped[list[Any]]


class RackRow(Base):
    """A rack whose NVLink domain a block found at fault: it needs a person, once for all its nodes.

    In force while ``released_at`` is None, one a rack; real and simulated racks are separate. ``dag_id``, ``run_id``:
    the block that found it.
    """

    __tablename__ = "racks_held"
    __table_args__ = (
        Index("uq_racks_held_live", "rack", "simulated", unique=True,
              sqlite_where=text("released_at IS NULL"), postgresql_where=text("released_at IS NULL")),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    rack: Mapped[str]
    simulated: Mapped[bool]
    codes: Mapped[list[Any]]
    why: Mapped[str]
    nodes: Mapped[list[Any]]
    dag_id: Mapped[str]
    run_id: Mapped[str]
    since: Mapped[datetime.datetime]
    released_at: Mapped[datetime.datetime | None]
    person: Mapped[str] = mapped_column(default="")
    reason: Mapped[str] = mapped_column(default="")


class LoadedPlaceRow(Base):
    """A leaf whose uplinks, or a pod whose way out, a block loads: one block at a time.

    It holds as long as its run holds a node; a row of a run that holds none is left over.
    """

    __tablename__ = "loaded_places"

    place: Mapped[str] = mapped_column(primary_key=True)
    dag_id: Mapped[str]
    run_id: Mapped[str]
    since: Mapped[datetime.datetime]
