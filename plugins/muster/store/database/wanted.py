"""What a node's scheduler is to do, written in the transaction that decides it."""

from __future__ import annotations

import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.model.schedulers import ADMITTED, LEFT_ALONE, WITHDRAWN
from muster.model.states import BROKEN, IN_FLIGHT, SERVING, State
from muster.store.database import clock
from muster.store.database.models import LeaseRow, NodeRow
from muster.store.database.outgoing import PlaceRow


def of_state(node: NodeRow) -> str:
    """Returns what the node's state demands of its scheduler. A node in shadow mode is left alone."""
    if State(node.state) is not State.PRODUCTION:
        return WITHDRAWN
    return LEFT_ALONE if node.shadow else ADMITTED


def want(session: Session, node: NodeRow, wanted: str, why: str, *, again: bool) -> None:
    """Queue the change, in the caller's transaction. What is already wanted is queued only if ``again``."""
    place = session.get(PlaceRow, node.name, with_for_update=True)
    if place is None or (place.wanted == wanted and not again):
        return
    place.wanted, place.why, place.wanted_at = wanted, why, later(place.wanted_at)
    place.attempts, place.last_error, place.difference = 0, "", ""
    if again:
        place.done = ""


def later(than: datetime.datetime) -> datetime.datetime:
    """Now, or just after ``than`` if the clock went back, since receivers order changes by this time."""
    return max(clock.now(), than + datetime.timedelta(microseconds=1))


def follow_state(
    session: Session, node: NodeRow, why: str, *, by_person: bool = False, came_from: State | None = None
) -> None:
    """Queue what the node's present state demands.

    ``by_person``: a person decided, which answers an open question about the node and ends its hold.
    ``came_from``: the state that the node has just left. When it enters quarantine, its scheduler shows ``why`` at
    once, even if the node is closed there already, and until it is repaired. A retired node is closed once more, for
    good. In any other state out of service, the scheduler shows ``why`` when housekeeping looks. Entering service
    answers the question about the node's drain.
    """
    state = State(node.state)
    moved = came_from not in (None, state)
    place = session.get(PlaceRow, node.name)
    by_job = place is not None and place.test_job and state is State.REVALIDATION
    if by_job and session.scalar(select(LeaseRow.id).where(LeaseRow.node == node.name, LeaseRow.released_at.is_(None))):
        return  # the test is a job, which keeps the node in service
    if place is None:
        return
    want(session, node, of_state(node), why, again=moved and state in (State.QUARANTINE, State.RETIRED))
    if moved and place.wanted == WITHDRAWN and state not in (*BROKEN, *IN_FLIGHT):
        place.why = f"{state}: {why}"
    if by_person or (state in SERVING and came_from not in (None, *SERVING)):
        place.question = ""
    if by_person:
        place.held_since = None
