"""The clock by which records are stamped: the database's, since the components' own clocks differ.

What counts as newer is decided by sequence all the same: this one may be set, too.
"""

from __future__ import annotations

import datetime
import threading
import time
from typing import TypeAlias

from sqlalchemy import Engine, text

from muster.store.database import engine

ASK_AGAIN_S = 60.0
"""How long the database's time is counted on from, by a clock that cannot be set."""

_Asked: TypeAlias = tuple[float, datetime.datetime]

_asking = threading.Lock()
_asked: dict[str, _Asked] = {}
"""By URL: when this process asked, and what the time was."""


def now() -> datetime.datetime:
    """This moment, in UTC; SQLite has no clock but the machine's. Raises DatabaseNotReady."""
    made = engine.engine()
    if made.dialect.name == engine.SQLITE:
        return datetime.datetime.now(datetime.UTC)
    known = _asked.get(str(made.url))
    if known is None or _counted() - known[0] >= ASK_AGAIN_S:
        known = _ask(made, known)
    at, moment = known
    return moment + datetime.timedelta(seconds=_counted() - at)


def _ask(made: Engine, known: _Asked | None) -> _Asked:
    """One thread asks; the others count on from what is ``known``, and where nothing is, they take turns.

    Callers have a connection of the pool already: if they waited for a second one, all could wait for each other.
    """
    if not _asking.acquire(blocking=known is None) and known is not None:
        return known
    try:
        with engine.translated(), engine.apart(made).connect() as connection:
            answer: datetime.datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        _asked[str(made.url)] = found = _counted(), answer.astimezone(datetime.UTC)
        return found
    finally:
        _asking.release()


def _counted() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
