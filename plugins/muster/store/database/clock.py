"""The clock by which records are stamped: the database's, since the components' own clocks differ.

What counts as newer is decided by sequence all the same: this one may be set, too.
"""

from __future__ import annotations

import datetime
import time

from sqlalchemy import text

from muster.store.database import engine

ASK_AGAIN_S = 60.0
"""How long the database's time is counted on from, by a clock that cannot be set."""

_asked: dict[str, tuple[float, datetime.datetime]] = {}
"""By URL: when this process asked, and what the time was."""


def now() -> datetime.datetime:
    """This moment, in UTC; SQLite has no clock but the machine's. Raises DatabaseNotReady."""
    made = engine.engine()
    if made.dialect.name == engine.SQLITE:
        return datetime.datetime.now(datetime.UTC)
    counted, key = time.clock_gettime(time.CLOCK_BOOTTIME), str(made.url)
    at, moment = _asked.get(key, (-ASK_AGAIN_S, None))
    if moment is None or counted - at >= ASK_AGAIN_S:
        with engine.translated(), made.connect() as connection:
            answer: datetime.datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        moment = answer.astimezone(datetime.UTC)
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        _asked[key] = at, moment
        return moment
    return moment + datetime.timedelta(seconds=counted - at)
