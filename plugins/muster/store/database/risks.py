"""Table of what was learned of the fleet's risk."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from muster.store.database.base import Base


class RiskRow(Base):
    """The planner's model as learned on one day (UTC, as 2026-06-01), as JSON of ``muster.rules.idle.past.Learned``."""

    __tablename__ = "risk_models"

    day: Mapped[str] = mapped_column(primary_key=True)
    content: Mapped[str] = mapped_column(deferred=True)
