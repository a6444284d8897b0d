"""The model of the fleet's risk that the planner learns once a day."""

from __future__ import annotations

import datetime

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError

from muster.store.database.engine import reading, writing
from muster.store.database.learned import RiskRow


def of_day(day: datetime.date) -> str | None:
    """Returns what was learned on that day, None if nothing was."""
    with reading() as session:
        return session.scalar(select(RiskRow.content).where(RiskRow.day == day.isoformat()))


def keep(day: datetime.date, content: str) -> None:
    """Store what was learned on that day, in place of everything stored before."""
    try:
        with writing() as session:
            session.execute(delete(RiskRow))
            session.add(RiskRow(day=day.isoformat(), content=content))
            session.flush()
    except IntegrityError:
        return  # another controller kept its own at this moment, learned from the same failures
