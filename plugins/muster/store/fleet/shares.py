"""How many observations of a machine one source may keep, so that rows and cost are bounded over its life.

A reporter (a node's root through the sweep, a scheduler's users through its epilog, the holder of a token) can
displace only observations of the same source, and only those that cause nothing any more.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from muster.model.health import ACTOR
from muster.store.database import access
from muster.store.database.health import HealthRow
from muster.store.database.models import EventRow, NodeRow
from muster_criteria.health.policy import HealthAction

ROWS_MAX = 500
"""How many observations of one machine are kept from one source. A new one replaces the oldest that causes nothing any
more; if there is none, it counts as ``OTHERS``."""
EVENTS_MAX = 50
"""Remarks per day in a node's history about what one source observed; one more says ``MORE_TODAY``."""
DAY = datetime.timedelta(days=1)
OLD = datetime.timedelta(days=30)
"""An event that was last seen longer ago keeps no row, even if its action was never carried out."""
OTHERS = "Others"
"""No source can use this name: checks from outside begin with a lower-case letter or a digit."""
FULL = f"no more than {ROWS_MAX} observations of one source are kept apart; what else it reported counts here"
MORE_TODAY = (
    f"{{source}} has observed more than {EVENTS_MAX} things in a day: what else it observes is no remark here; see "
    "`muster node show {node}`"
)


class Share:
    """One source's share of a machine: its rows, and its remarks of the last day in the node's history.

    Each is read from the database once for a report, and only if the report adds to it.
    """

    def __init__(self, session: Session, node: NodeRow, source: str, at: datetime.datetime) -> None:
        self._session, self._node, self._source, self._at = session, node, source, at

    @functools.cached_property
    def _of_source(self) -> tuple[ColumnElement[bool], ...]:
        node = self._node
        return HealthRow.node == node.name, HealthRow.machine == node.machine, HealthRow.source == self._source

    @functools.cached_property
    def _room(self) -> int:
        kept = self._session.scalar(select(func.count(HealthRow.id)).where(*self._of_source)) or 0
        return ROWS_MAX - kept

    @functools.cached_property
    def _kept(self) -> list[HealthRow]:
        """Newest first."""
        query = select(HealthRow).where(*self._of_source, HealthRow.check != f"{OTHERS}/{self._source}")
        return list(self._session.scalars(query.order_by(HealthRow.id.desc())))

    def take(self, known: Mapping[tuple[str, str], list[HealthRow]]) -> bool:
        """Make room for one more row; False if all rows are still needed."""
        if self._room > 0:
            self._room -= 1
            return True
        while self._kept:
            row = self._kept.pop()
            if self._settled(row):
                if row in (rows := known.get((row.part, row.check), [])):
                    rows.remove(row)
                self._session.delete(row)
                self._session.flush()
                return True
        return False

    def _settled(self, row: HealthRow) -> bool:
        """Whether the row causes nothing any more."""
        done = row.action == HealthAction.NOTE or row.acted != "" or row.last_seen < self._at - OLD
        return row.over or row.spell < self._node.spell or (row.bad is None and done)

    @functools.cached_property
    def _told(self) -> int:
        query = select(EventRow.id).where(EventRow.node == self._node.name, EventRow.at > self._at - DAY)
        query = query.where(EventRow.actor == ACTOR, EventRow.evidence["source"].as_string() == self._source)
        return len(self._session.scalars(query.limit(EVENTS_MAX + 1)).all())

    def tell(self, text: str, evidence: dict[str, Any]) -> None:
        """Add a remark to the node's history, unless the source has reached its daily limit."""
        if self._told > EVENTS_MAX:
            return
        if self._told == EVENTS_MAX:
            text, evidence = MORE_TODAY.format(source=self._source, node=self._node.name), {"source": self._source}
        self._told += 1
        access.remark(self._session, self._node, ACTOR, text, evidence)
