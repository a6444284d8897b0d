"""The queue of changes to schedulers: one place for each node, what is wanted there, and what has been confirmed.

A change is queued by the transaction that moves the node (``database.wanted``), so none is lost; a later change of the
same node supersedes one that still waits.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, or_, select, update
from sqlalchemy.orm import Session

from muster.errors import BadScheduler, IllegalMove, Refusal
from muster.model.nodes import Node
from muster.model.schedulers import ADMITTED as ADMITTED
from muster.model.schedulers import CLOSED, OPEN, REPEATED, Place
from muster.model.schedulers import WITHDRAWN as WITHDRAWN
from muster.model.states import BROKEN, SERVING, State
from muster.rules.lifecycle.decisions import check_decision
from muster.settings import settings
from muster.store.database import access
from muster.store.database.batches import batches
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, NodeRow
from muster.store.database.outgoing import PlaceRow
from muster.store.database.wanted import follow_state, later, of_state, want
from muster.store.queues import users_jobs

AGAIN = datetime.timedelta(days=1)
"""A second lost drain within this time is a question to a person."""
CLAIM = 20
"""How many times MUSTER_SCHEDULER_TIMEOUT_S a process has a change for itself. A change takes up to seven commands, and
over SSH each has one such limit for the login and one for the command.
"""


def assign(node: str, cluster: str, name: str, person: str, reason: str, *, abandon: bool = False) -> Place | None:
    """Give the node a place in a cluster under its name there, or, with cluster "", none. Queues what its state wants.

    Raises IllegalMove without a person and a reason, if a node in service or in a test would change its place, or if
    its scheduler may still give it to users, unless the person chooses to ``abandon`` that place; BadScheduler if
    another node has that name there; UnknownNode.
    """
    check_decision(person, reason, f"{node} keeps its scheduler")
    with writing() as session:
        row = access.node_row(session, node, lock=True)
        place = session.get(PlaceRow, node, with_for_update=True)
        before = f"{place.cluster}/{place.name}" if place else "no scheduler"
        if place is not None:
            _check_given_up(session, row, place, abandon=abandon)
        taken = select(PlaceRow.node).where(PlaceRow.cluster == cluster, PlaceRow.name == name)
        other = session.scalar(taken.where(PlaceRow.node != node))
        if other is not None:
            raise BadScheduler(f"{other} is {name} in {cluster} already: two nodes cannot have one name there")
        held_since = place.held_since if place is not None else None
        if place is not None:
            users_jobs.close(session, node)
            session.delete(place)
            session.flush()
        if cluster:
            wanted = of_state(row)
            why = f"{row.state}, not admitted yet" if wanted == WITHDRAWN else reason.strip()
            session.add(
                PlaceRow(
                    node=node, cluster=cluster, name=name, wanted=wanted, why=why, wanted_at=access.now(),
                    held_since=held_since,
                )
            )  # fmt: skip
            session.flush()
        after = f"{cluster}/{name}" if cluster else "no scheduler"
        evidence = {"person": person, "reason": reason.strip(), "before": before, "after": after}
        access.remark(session, row, person, f"its scheduler is {after}: {reason.strip()}", evidence)
        return _record(session, node)


def _check_given_up(session: Session, row: NodeRow, place: PlaceRow, *, abandon: bool) -> None:
    """Raise IllegalMove unless the node may leave its place now, as ``assign``."""
    node, before = row.name, f"{place.cluster}/{place.name}"
    if (lease := access.live_lease(session, node)) is not None:
        raise IllegalMove(
            f"{node} is tested in {before}, by run {lease.run_id} of {lease.dag_id}: wait for its end", Refusal.LEASED
        )
    if State(row.state) in SERVING:
        raise IllegalMove(
            f"{node} is in service in {before}: move it out first, `muster node move {node} registered --reason …`",
            Refusal.STATE,
        )
    served = place.done_at is not None or place.shown == OPEN
    if served and place.done != WITHDRAWN and not abandon:
        why = f": {place.last_error}" if place.last_error else ""
        raise IllegalMove(
            f"{place.cluster} has not confirmed yet that it closed {node}, which may take jobs there{why}; repeat "
            f"this once it has, or give it up: `muster node scheduler {node} --none --abandon --reason …`",
            Refusal.STATE,
        )


def place(node: str) -> Place | None:
    """The node's place in a scheduler, None without one."""
    with reading() as session:
        return _record(session, node)


def places(*, waiting: bool = False, where: ColumnElement[bool] | None = None) -> list[Place]:
    """Every node's place, by node. ``waiting``: only those with a change to carry out, withdrawals first, then by the
    last try, so that no change waits behind those that always fail, then by age.
    """
    tried = PlaceRow.claimed_until
    order = (PlaceRow.wanted == ADMITTED, tried.is_not(None), tried, PlaceRow.wanted_at) if waiting else ()
    with reading() as session:
        found = _places(session, *(() if where is None else (where,)), order=order)
    return [each for each in found if each.waits or not waiting]


def places_of(nodes: Collection[str]) -> dict[str, Place]:
    """{node: its place}, for those of these nodes that have one."""
    with reading() as session:
        found = (each for some in batches(nodes) for each in _places(session, PlaceRow.node.in_(some)))
        return {each.node: each for each in found}


def named(cluster: str, names: Iterable[str]) -> dict[str, str]:
    """{name in the cluster: node}, for those of ``names`` that a node has there."""
    query = select(PlaceRow.name, PlaceRow.node).where(PlaceRow.cluster == cluster)
    possible = (name for name in names if name.isprintable())  # PostgreSQL does not take others
    with reading() as session:
        return {
            name: node
            for some in batches(possible)
            for name, node in session.execute(query.where(PlaceRow.name.in_(some)))
        }


def withdraw_for_test(node: str, why: str, *, again: bool = False) -> None:
    """Queue the withdrawal of a node in service that a run is about to test; the run's release of the node reverts it.

    ``again``: even if it is confirmed already. Does nothing for a node in shadow mode.
    """
    with writing() as session:
        row = access.node_row(session, node, lock=True)
        if not row.shadow:
            want(session, row, WITHDRAWN, why, again=again)


def restore(node: str, why: str) -> None:
    """Queue what the node's state demands, after a test for which it was withdrawn. Harmless when nothing differs."""
    with writing() as session:
        follow_state(session, access.node_row(session, node, lock=True), why)


def claim(node: str) -> Place | None:
    """Claim the node's waiting change for the caller, for ``CLAIM``; None if there is none, or another has claimed it.

    Until the change is confirmed, the node's state in the scheduler is unknown, whatever was confirmed before.
    """
    moment = access.now()
    length = CLAIM * datetime.timedelta(seconds=settings().scheduler_timeout_s)
    until, claimed = moment + length, PlaceRow.claimed_until
    # A claim that ends far beyond this one was made by a clock that has been set back since.
    free = or_(claimed.is_(None), claimed <= moment, claimed > until + length)
    with writing() as session:
        mine = update(PlaceRow).where(PlaceRow.node == node, PlaceRow.wanted != PlaceRow.done)
        mine = mine.where(PlaceRow.wanted != "", free).values(claimed_until=until, done="")
        taken = session.execute(mine.returning(PlaceRow.node)).first()
        return _record(session, node) if taken else None


def carried_out(change: Place, error: str = "", lifted: str = "") -> None:
    """Note that the claimed change was confirmed, or why not. One that was superseded meanwhile stays queued.

    ``lifted``: our drain that the admission lifted.
    """
    with writing() as session:
        row = session.get(PlaceRow, change.node, with_for_update=True)
        if row is None:
            return  # somebody took the node out of its scheduler meanwhile
        row.claimed_until = access.now() if error else None
        if (row.cluster, row.name) != (change.cluster, change.name):
            return
        if error:
            row.attempts, row.last_error = row.attempts + 1, error
            return
        # The scheduler is where this change left it, whatever is wanted by now.
        row.done, row.done_at, row.difference, row.done_why = change.wanted, access.now(), "", change.why
        row.lifted = lifted or row.lifted
        row.held_since = None if change.wanted == ADMITTED else row.held_since
        if row.wanted_at == change.wanted_at:
            row.attempts, row.last_error = 0, ""


def note_seen(
    node: str,
    shown: str,
    difference: str = "",
    verify: str = "",
    verify_since: datetime.datetime | None = None,
    *,
    worked_on: str = "",
) -> None:
    """Store how the scheduler shows the node, where that differs, and a person's drain that requests a test.

    Another request, or none, ends the question about the former request. What others than Muster did to the node there
    (a drain, a reboot, its end) goes into its history. ``worked_on``: as ``Seen.worked_on``.
    """
    with writing() as session:
        row = session.get(PlaceRow, node)
        if row is None:
            return
        later = verify_since is not None and (row.verify_since is None or verify_since > row.verify_since)
        if row.verify != verify or (verify and later):
            row.question = "" if row.verify else row.question
            row.verify_since = (verify_since if later else access.now()) if verify else None
        row.difference, row.verify = difference, verify
        if shown != row.shown:
            if not {shown, row.shown} <= {"", OPEN, CLOSED}:
                evidence = {"worked_on": worked_on} if worked_on else {}
                text = f"{row.cluster} shows it {shown}"
                access.remark(session, access.node_row(session, node), "scheduler", text, evidence)
            row.shown, row.shown_since = shown, access.now()


def ask_about_request(node: str, question: str) -> bool:
    """Ask about a person's drain that requests a test. Returns False, and changes nothing, if the drain is gone."""
    with writing() as session:
        row = session.get(PlaceRow, node, with_for_update=True)
        if row is None or not row.verify:
            return False
        row.question = question
        return True


def note_test_job(node: str, job: str, *, preempted: bool = False) -> None:
    """Store the name of the job that tests the node, and whether it was preempted."""
    with writing() as session:
        row = session.get(PlaceRow, node, with_for_update=True)
        if row is None:
            raise BadScheduler(f"{node} has no scheduler any more: somebody removed it; start the test again")
        row.test_job, row.preempted = job, preempted


def forget_test_job(node: str, job: str) -> None:
    """Note that Muster ended this test job; another one that a run has noted meanwhile stays."""
    query = update(PlaceRow).where(PlaceRow.node == node, PlaceRow.test_job == job)
    with writing() as session:
        session.execute(query.values(test_job="", preempted=False))


def note_ended_job(node: str, sentence: str) -> None:
    """Remark in the node's history that a user's job was ended, which ``sentence`` names."""
    with writing() as session:
        access.remark(session, access.node_row(session, node), "muster", sentence)


def drain_again(node: str) -> str | None:
    """Queue the withdrawal of a node that Muster has withdrawn, and that its scheduler shows without a drain.

    Returns the question that a person is asked, "" if none: about a broken node, and about any other that loses its
    drain for the second time within ``AGAIN``. Returns None, and changes nothing, if something else is wanted by now,
    or if a run tests a node in service: the end of the test then settles it, and no user's job loses its node.
    """
    what = "drained again: somebody lifted its drain, or its scheduler lost it"
    with writing() as session:
        row = access.node_row(session, node, lock=True)
        place = session.get(PlaceRow, node, with_for_update=True)
        if place is None or place.wanted != WITHDRAWN:
            return None
        if State(row.state) in SERVING and access.live_lease(session, node) is not None:
            return None
        _queue_again(place)
        lately = select(EventRow.id).where(EventRow.node == node, EventRow.reason == what)
        again = session.scalar(lately.where(EventRow.at > access.now() - AGAIN).limit(1)) is not None
        access.remark(session, row, "muster", what)
        if not again and State(row.state) not in BROKEN:
            return ""
        gone = f"`muster node remove {node} --reason …` ends its place there, so that it is not drained again"
        way = gone if row.state == State.RETIRED else f"find out why, then `muster node move {node} … --reason …`"
        found = f"{node} is in {row.state} and was found without Muster's drain in {place.cluster}"
        place.question = f"{found}{', repeatedly' if again else ''}: {way}"
        return place.question


def hold_all(connection: Connection) -> int:
    """Hold every node that is in service or about to be, within the caller's transaction; returns how many.

    What their schedulers have done since is unknown: a confirmed admission has to be confirmed again.
    """
    near = select(NodeRow.name).where(NodeRow.state.in_((State.QUALIFIED, State.CLUSTER_VALIDATION, *SERVING)))
    theirs = or_(PlaceRow.wanted == ADMITTED, PlaceRow.node.in_(near))
    connection.execute(update(PlaceRow).where(theirs, PlaceRow.done == ADMITTED).values(done=""))
    # A receiver of webhooks may have seen later changes than the records have.
    since = later(connection.scalar(select(func.max(PlaceRow.wanted_at))) or access.now())
    waits = (PlaceRow.wanted != "", PlaceRow.wanted != PlaceRow.done)
    connection.execute(update(PlaceRow).where(*waits).values(wanted_at=since))
    return connection.execute(update(PlaceRow).where(theirs).values(held_since=access.now(), lifted="")).rowcount


def let_open(node: str, person: str = "", reason: str = "") -> Node:
    """Release a node's held admission: by a person's decision, or because its scheduler shows the node open.

    Raises IllegalMove if nothing holds it, NoPerson for a person without a reason, UnknownNode.
    """
    if person or reason:
        check_decision(person, reason, f"{node} is not opened")
    with writing() as session:
        row = access.node_row(session, node, lock=True)
        place = session.get(PlaceRow, node, with_for_update=True)
        if place is None or place.held_since is None:
            raise IllegalMove(f"nothing holds {node} back from its scheduler", Refusal.NOTHING_HELD)
        text = reason.strip() or f"{place.cluster} shows it open"
        evidence = {"person": person, "reason": text, "held_since": place.held_since.isoformat()}
        place.held_since = None
        if place.wanted == ADMITTED:
            _queue_again(place)
            place.why = text if person else REPEATED
        access.remark(session, row, person or "muster", f"its scheduler may open it: {text}", evidence)
        return access.to_node(row)


def mark_again(node: str) -> None:
    """Queue a node's confirmed admission once more, unless something else is wanted by now or it still waits."""
    with writing() as session:
        place = session.get(PlaceRow, node, with_for_update=True)
        if place is not None and place.wanted == place.done == ADMITTED:
            _queue_again(place)
            place.why = REPEATED


def renew_reason(node: str) -> None:
    """Queue a node's confirmed withdrawal once more if its reason changed, unless something else is wanted."""
    with writing() as session:
        place = session.get(PlaceRow, node, with_for_update=True)
        if place is not None and place.wanted == place.done == WITHDRAWN and place.done_why != place.why:
            _queue_again(place)


def _queue_again(place: PlaceRow) -> None:
    """Queue it with a new time: a receiver of webhooks ignores changes that it has seen, and all earlier ones."""
    place.done, place.wanted_at = "", later(place.wanted_at)


def _record(session: Session, node: str) -> Place | None:
    return next(iter(_places(session, PlaceRow.node == node)), None)


def _places(session: Session, *where: ColumnElement[bool], order: Iterable[Any] = ()) -> list[Place]:
    query = select(PlaceRow, NodeRow.state).join(NodeRow, NodeRow.name == PlaceRow.node)
    return [_value(row, state) for row, state in session.execute(query.where(*where).order_by(*order, PlaceRow.node))]


def _value(row: PlaceRow, state: str) -> Place:
    # By keyword: mypy would not notice two strings in the wrong order.
    return Place(
        node=row.node, cluster=row.cluster, name=row.name, state=State(state), wanted=row.wanted, why=row.why,
        wanted_at=row.wanted_at, done=row.done, attempts=row.attempts, last_error=row.last_error,
        difference=row.difference, question=row.question, verify=row.verify, test_job=row.test_job,
        preempted=row.preempted, done_at=row.done_at, verify_since=row.verify_since, shown=row.shown,
        shown_since=row.shown_since, done_why=row.done_why, lifted=row.lifted, held_since=row.held_since,
    )  # fmt: skip
