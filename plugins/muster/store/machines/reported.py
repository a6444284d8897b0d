"""Reports of what happened to nodes in service: GPU errors, crashed jobs, long absence. Remarks in their history."""

from __future__ import annotations

import collections
import datetime

from sqlalchemy import select

from muster.model.states import State
from muster.model.statistics import Reported
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, NodeRow

ACTOR = "report"


def note(node: str, key: str, kind: str, text: str, *, urgent: bool) -> bool:
    """Note a report. Returns False if ``key`` was noted for the node before. Raises UnknownNode."""
    with writing() as session:
        row = access.node_row(session, node, lock=True)
        known = select(EventRow.evidence).where(
            EventRow.node == node, EventRow.actor == ACTOR, EventRow.at >= row.machine_since
        )
        if any(evidence.get("report") == key for evidence in session.scalars(known)):
            return False
        state = State(row.state)
        evidence = {"report": key, "kind": kind, "urgent": urgent}
        access.write_event(session, node, state, state, ACTOR, text, evidence)
        return True


def since(since: datetime.datetime) -> dict[str, Reported]:
    """{node: what was reported of its present machine since then}, without nodes of which nothing was."""
    query = (
        select(EventRow)
        .join(NodeRow, NodeRow.name == EventRow.node)
        .where(EventRow.actor == ACTOR, EventRow.at >= since)
    )
    by_node: dict[str, list[EventRow]] = collections.defaultdict(list)
    with reading() as session:
        for event in session.scalars(query.where(EventRow.at >= NodeRow.machine_since).order_by(EventRow.id)):
            by_node[event.node].append(event)
        found = {}
        for node, events in by_node.items():
            urgent = [event for event in events if event.evidence["urgent"]]
            last = urgent[-1] if urgent else None
            xids = sum(event.evidence["kind"] == "xid" for event in events)
            found[node] = Reported(xids, last.reason if last else "", last.at if last else None)
        return found
