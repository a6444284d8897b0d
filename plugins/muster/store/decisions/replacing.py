"""Nodes that left production, the qualified ones proposed for their places, and their admission."""

from __future__ import annotations

import functools

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from muster.errors import IllegalMove, Refusal
from muster.model.events import Evidence
from muster.model.nodes import Node
from muster.model.replacing import Crossing, Fitness, Replacement, Vacancy
from muster.model.states import BROKEN, SERVING, State
from muster.rules.lifecycle.gate import Admit, Refuse
from muster.rules.service import replacing as rules
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, NodeRow
from muster.store.database.outgoing import PlaceRow
from muster.store.decisions import admission, certificates, questions
from muster.store.decisions.current import current_verdicts
from muster_criteria.model import Verdict
from muster_reports.text import plural

SHOWN_MAX = 3
"""How many of the gate's reasons for asking a person are shown with a spare."""


def proposals() -> list[Replacement]:
    """Returns a replacement for each node that left production and whose place is open, where there is one."""
    with reading() as session:
        return _proposals(session)


def proposal_for(gone: str) -> Replacement | None:
    """Returns the replacement that is proposed for that node."""
    with reading() as session:
        return proposed(session, gone)


def proposed(session: Session, gone: str) -> Replacement | None:
    """``proposal_for`` within the caller's transaction."""
    return next((each for each in _proposals(session) if each.gone.node == gone), None)


def fell() -> frozenset[str]:
    """Returns the qualified nodes that left service for a warning: they have passed no test since."""
    with reading() as session:
        return _fell(session)


def admit(proposed: Replacement) -> Node:
    """Let a spare take the place of a node that left production, by the gate, without a person.

    Raises IllegalMove if the gate asks for a person, if the place was taken meanwhile, or while a run holds the spare.
    """
    gone, spare = proposed.gone.node, proposed.spare
    with writing() as session:
        # Both are locked, in order: two controllers that see one open place take turns.
        rows = {name: access.node_row(session, name, lock=True) for name in sorted((gone, spare))}
        if gone not in {each.node for each in _vacancies(session)}:
            raise IllegalMove(f"{spare} stays where it is: the place of {gone} was taken meanwhile", Refusal.STATE)
        if access.live_lease(session, spare) is not None:
            raise IllegalMove(f"{spare} is tested now: its verdict decides", Refusal.LEASED)
        admission.check(spare, admission.decide(session, rows[spare]), Evidence())
        why = f"takes the place of {gone}{proposed.near}, which left production; full-coverage PASS"
        evidence = Evidence(verdict=Verdict.PASS, full_coverage=True, replaces=gone, reason=why)
        access.move(session, rows[spare], State.PRODUCTION, "muster", why, evidence)
        certificates.issue(session, rows[spare], "muster", evidence)
        return access.to_node(rows[spare])


def _proposals(session: Session) -> list[Replacement]:
    wanted = NodeRow.state.in_((*BROKEN, State.QUALIFIED))
    rows = session.scalars(select(NodeRow).where(wanted).order_by(NodeRow.name)).all()
    if len({row.state == State.QUALIFIED for row in rows}) < 2:
        return []  # nothing left production, or nothing can replace it
    by_name = {row.name: row for row in rows}
    nodes = {name: access.to_node(row) for name, row in by_name.items()}
    clusters = {row.node: row.cluster for row in session.execute(select(PlaceRow.node, PlaceRow.cluster))}
    known = functools.partial(_fitness, session, by_name)
    return rules.proposals(_vacancies(session), nodes, _fell(session), clusters, known)


def _fell(session: Session) -> frozenset[str]:
    moved = (
        select(func.max(EventRow.id))
        .join(NodeRow, NodeRow.name == EventRow.node)
        .where(NodeRow.state == State.QUALIFIED, EventRow.from_state != EventRow.to_state)
        .group_by(EventRow.node)
    )
    return frozenset(session.scalars(select(EventRow.node).where(EventRow.id.in_(moved), access.GOES)))


def _vacancies(session: Session) -> list[Vacancy]:
    broken = select(NodeRow.name, NodeRow.state).where(NodeRow.state.in_(BROKEN))
    states = {name: State(state) for name, state in session.execute(broken)}
    if not states:
        return []
    lately = EventRow.at >= access.now() - rules.PERIOD
    # For a node that entered lately, its earlier moves count too: it takes its own place again.
    entered = select(EventRow.node).where(lately, access.ENTERS)
    query = (
        select(
            EventRow.node,
            EventRow.at,
            EventRow.to_state,
            EventRow.evidence,
            NodeRow.sku,
            NodeRow.simulated,
            func.coalesce(PlaceRow.cluster, ""),
        )
        .join(NodeRow, NodeRow.name == EventRow.node)
        .outerjoin(PlaceRow, PlaceRow.node == EventRow.node)
        .where(or_(lately, EventRow.node.in_(entered)), EventRow.from_state != EventRow.to_state)
        .where(access.COMES != access.GOES)
        .order_by(EventRow.id)
    )
    crossings = [
        Crossing(node, at, State(after) in SERVING, tuple(kind), evidence.get("replaces", ""))
        for node, at, after, evidence, *kind in session.execute(query)
        if not evidence.get("adopted")  # it served before, so the fleet has not grown
    ]
    return rules.vacancies(crossings, states)


def _fitness(session: Session, rows: dict[str, NodeRow], name: str) -> Fitness | None:
    """The evidence for a qualified node; None for one that is under test, asked about or refused."""
    if access.live_lease(session, name) is not None or questions.waits(session, name):
        return None
    decision = admission.decide(session, rows[name])
    if isinstance(decision, Refuse):
        return None
    passed = [each for _, each in current_verdicts(session, rows[name]) if each.verdict is Verdict.PASS]
    last = {each.stage: each.recorded_at for each in passed}
    known = f"{len(last)} stages passed, all of them since {min(last.values()):%Y-%m-%d %H:%M} UTC" if last else ""
    if isinstance(decision, Admit):
        return Fitness(True, f"{known}; the gate admits it")
    reasons = decision.reasons
    more = f"; and {plural(len(reasons) - SHOWN_MAX, 'more reason')}" if len(reasons) > SHOWN_MAX else ""
    open_points = f"a person decides: {'; '.join(reasons[:SHOWN_MAX])}{more}"
    return Fitness(False, f"{known}; {open_points}" if known else open_points)
