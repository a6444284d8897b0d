"""Lemons: nodes that a person marked as failing again and again. Only a person's decision lets one into production."""

from __future__ import annotations

from muster.errors import IllegalMove, Refusal
from muster.model.nodes import Lemon, Node
from muster.rules.lifecycle.decisions import check_decision
from muster.store.database import access
from muster.store.database.engine import writing


def mark(name: str, person: str, reason: str) -> Node:
    """Mark a node as a lemon; a mark that it has already is replaced. Its state stays. Returns the node.

    Raises NoPerson without a named person and a reason, UnknownNode.
    """
    check_decision(person, reason, f"{name} is not marked")
    with writing() as session:
        row = access.node_row(session, name, lock=True)
        lemon = Lemon(person, access.now(), reason.strip())
        row.lemon_by, row.lemon_since, row.lemon_for = person, lemon.since, lemon.reason
        access.remark(session, row, person, f"it is {lemon}", {"person": person, "reason": lemon.reason, "lemon": True})
        return access.to_node(row)


def clear(name: str, person: str, reason: str) -> Node:
    """Take the mark off a node; returns the node.

    Raises IllegalMove if it has none, NoPerson without a named person and a reason, UnknownNode.
    """
    check_decision(person, reason, f"{name} stays marked")
    with writing() as session:
        row = access.node_row(session, name, lock=True)
        lemon = access.lemon_of(row)
        if lemon is None:
            raise IllegalMove(f"{name} is not marked as a lemon: there is nothing to clear", Refusal.NOT_MARKED)
        row.lemon_since = None
        evidence = {"person": person, "reason": reason.strip(), "lemon": False}
        access.remark(session, row, person, f"it is no lemon any more: {reason.strip()}", evidence)
        return access.to_node(row)
