"""Pauses: while one lasts, no run leases the node to test it; its state and its place in a scheduler stay."""

from __future__ import annotations

import datetime

from muster.errors import BadDay, IllegalMove, Refusal
from muster.model.nodes import Node, Pause
from muster.rules.lifecycle.decisions import check_decision
from muster.store.database import access
from muster.store.database.engine import writing


def pause(name: str, until: datetime.datetime, person: str, reason: str) -> Node:
    """Pause the tests of a node until a moment; a pause that it has already is replaced. Returns the node.

    A run that holds the node goes on. Raises BadDay if it is over already, NoPerson without a named person and a
    reason, UnknownNode.
    """
    check_decision(person, reason, f"the tests of {name} are not paused")
    pause = Pause(person, until, reason.strip())
    if until <= access.now():
        raise BadDay(f"a pause until {pause.last_day} would be over already: give a later date")
    with writing() as session:
        row = access.node_row(session, name, lock=True)
        row.paused_by, row.paused_until, row.paused_for = person, until, pause.reason
        evidence = {"person": person, "reason": pause.reason, "until": until.isoformat()}
        access.remark(session, row, person, f"its tests are {pause}", evidence)
        return access.to_node(row)


def resume(name: str, person: str, reason: str) -> Node:
    """End a node's pause before its time; returns the node.

    Raises IllegalMove if its tests are not paused, NoPerson without a named person and a reason, UnknownNode.
    """
    check_decision(person, reason, f"the pause of {name} goes on")
    with writing() as session:
        row = access.node_row(session, name, lock=True)
        pause = access.pause_of(row)
        if pause is None:
            raise IllegalMove(f"the tests of {name} are not paused: there is nothing to end", Refusal.NOT_PAUSED)
        row.paused_until = None
        evidence = {"person": person, "reason": reason.strip(), "ended": str(pause)}
        access.remark(session, row, person, f"its pause ended: {reason.strip()}", evidence)
        return access.to_node(row)
