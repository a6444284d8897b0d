"""The circuit breaker's state by the records, and a person's decision on a verdict that it holds."""

from __future__ import annotations

import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.errors import IllegalMove, Refusal
from muster.model.breaker import Breaker
from muster.model.nodes import Node
from muster.model.runs import RunKey
from muster.model.states import SERVING
from muster.rules.lifecycle import breaker as planning
from muster.rules.lifecycle.breaker import Limits
from muster.rules.lifecycle.decisions import check_decision
from muster.settings import settings
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, NodeRow


def breaker(*, simulated: bool = False) -> Breaker:
    """The state of the circuit breaker of the real or of the simulated fleet."""
    with reading() as session:
        return breaker_now(session, simulated=simulated)


def breaker_now(session: Session, *, simulated: bool, deciding: bool = False) -> Breaker:
    """``breaker`` within the caller's transaction. ``deciding``: the caller withdraws a node if the breaker allows it.

    Real and simulated nodes have a breaker each.
    """
    if deciding:  # two that decide at once would each see room for one more
        access.take_turns(session, "withdraw")
    now, limits = access.now(), _limits()
    left = (
        select(EventRow)
        .join(NodeRow, NodeRow.name == EventRow.node)
        .where(EventRow.at > now - limits.window, access.GOES, ~access.COMES)
        .where(NodeRow.simulated == simulated)
    )
    in_service = session.scalars(select(NodeRow.name).where(NodeRow.state.in_(SERVING), NodeRow.simulated == simulated))
    return planning.state(map(access.to_event, session.scalars(left)), list(in_service), now, limits)


def keep_in_service(name: str, person: str, reason: str, *, held: RunKey | None = None) -> Node:
    """Keep a node in service whose verdict is held: removes the mark, keeps the finding.

    ``held``: the run whose verdict the person decides about; another may be held by now. Raises IllegalMove if no
    verdict is held, or not that one, NoPerson without a named person and a reason, UnknownNode.
    """
    check_decision(person, reason, f"{name} is not kept")
    with writing() as session:
        row = access.node_row(session, name, lock=True)
        if not row.held_run:
            raise IllegalMove(f"no verdict on {name} is held: there is nothing to decide", Refusal.NOTHING_HELD)
        if held is not None and row.held_run != str(held):
            raise IllegalMove(
                f"{name}: another verdict is held by now, of run {row.held_run} and not of {held}: look at it first",
                Refusal.NOTHING_HELD,
            )
        evidence = {"person": person, "reason": reason.strip(), "kept": row.held_run}
        row.held_run = ""
        row.accepted = row.kept = access.last_stage(session, row)
        access.remark(session, row, person, f"kept in service: {reason.strip()}", evidence)
        return access.to_node(row)


def _limits() -> Limits:
    current = settings()
    window = datetime.timedelta(hours=current.breaker_hours)
    return Limits(window, current.breaker_share, current.breaker_nodes, current.breaker_fleet)
