"""Tables of results computed from the whole fleet: its numbers, and the learned model of its risk."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from muster.store.database.base import Base


class NumbersRow(Base):
    """The numbers of real or of simulated nodes, as JSON of ``muster_reports.digest.numbers.FleetNumbers``."""

    __tablename__ = "fleet_numbers"

    simulated: Mapped[bool] = mapped_column(primary_key=True)
    content: Mapped[str]


class RiskRow(Base):
    """The planner's model as learned on one day (UTC, as 2026-06-01), as JSON of ``muster.rules.idle.past.Learned``."""

    __tablename__ = "risk_models"

    day: Mapped[str] = mapped_column(primary_key=True)
    content: Mapped[str] = mapped_column(deferred=True)
