"""Table of the fleet's numbers."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from muster.store.database.base import Base


class NumbersRow(Base):
    """The numbers of real or of simulated nodes, as JSON of ``muster_reports.digest.numbers.FleetNumbers``."""

    __tablename__ = "fleet_numbers"

    simulated: Mapped[bool] = mapped_column(primary_key=True)
    content: Mapped[str]
