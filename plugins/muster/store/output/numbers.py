"""The fleet's numbers: made once an hour, and read by pages, metrics and the command line."""

from __future__ import annotations

import datetime

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.learned import NumbersRow
from muster.store.database.models import NodeRow
from muster.store.output import ledger
from muster_reports.digest import numbers
from muster_reports.digest.numbers import FleetNumbers

PERIOD = datetime.timedelta(days=30)
_TEXT = TypeAdapter(FleetNumbers)


def make(now: datetime.datetime | None = None) -> list[FleetNumbers]:
    """Count the last ``PERIOD``, of real and of simulated nodes where there are any, and keep that in place of what was
    kept before."""
    until = now or access.now()
    with reading() as session:
        kinds = sorted(session.scalars(select(NodeRow.simulated).distinct()))
    made = [numbers.of_fleet(ledger.lives(until - PERIOD, until, simulated=kind), simulated=kind) for kind in kinds]
    with writing() as session:
        for each in made:
            text = _TEXT.dump_json(each).decode()
            session.merge(NumbersRow(simulated=each.simulated, content=text))
        for row in session.scalars(select(NumbersRow).where(NumbersRow.simulated.not_in(kinds))):
            session.delete(row)
    return made


def kept() -> list[FleetNumbers]:
    """The numbers as they were made last, those of real nodes first."""
    with reading() as session:
        return of_session(session)


def of_session(session: Session) -> list[FleetNumbers]:
    """``kept``, within a transaction. What another version of Muster wrote and this one cannot read is left out: the
    next hour replaces it."""
    found = []
    for row in session.scalars(select(NumbersRow).order_by(NumbersRow.simulated)):
        try:
            found.append(_TEXT.validate_json(row.content))
        except ValidationError:
            continue
    return found
