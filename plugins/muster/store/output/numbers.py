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
    """Compute the numbers of the last ``PERIOD``, for real and for simulated nodes if any, and store them in place of
    the former ones."""
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
    """The numbers as they were last made, those of real nodes first."""
    with reading() as session:
        return of_session(session)


def of_session(session: Session) -> list[FleetNumbers]:
    """``kept``, within the caller's transaction. Numbers of another version of Muster that this one cannot read are
    left out: the next hour replaces them."""
    found = []
    for row in session.scalars(select(NumbersRow).order_by(NumbersRow.simulated)):
        try:
            found.append(_TEXT.validate_json(row.content))
        except ValidationError:
            continue
    return found
