"""The clock by which records are stamped: the database's, since the components' own clocks differ.

Which record is newer is still decided by sequence, since this clock may be set, too.
"""

from __future__ import annotations

import datetime
import threading
import time
from typing import TypeAlias

from sqlalchemy import Engine, text

from muster.store.database import engine

ASK_AGAIN_S = 60.0
"""How long (s) an answer of the database is used, with the time since added by a clock that cannot be set."""

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
    """Ask the database for its time, in one thread; meanwhile others use what is ``known``, or wait if that is None.

    This uses no connection of the pool: callers hold one already, and could deadlock while they wait for another.
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
