"""Incidents, their evidence, and the attempts to repair them: an attempt is reserved before it is carried out."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from muster.errors import IllegalMove, LeaseLost, NodeLeased, Refusal, UnknownIncident
from muster.model.events import Evidence
from muster.model.repairs import Attempt, Bundle, Fault, Incident, Outcome
from muster.model.runs import RunKey
from muster.model.states import IN_FLIGHT, State
from muster.rules.lifecycle.transitions import steps
from muster.rules.service import repair as rules
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, LeaseRow, NodeRow, StageRow
from muster.store.database.repairs import AttemptRow, IncidentRow
from muster.store.decisions import incidents
from muster.store.decisions.current import current_verdicts
from muster.store.decisions.incidents import to_incident
from muster.store.machines.parts import current_serials
from muster_criteria.context.waivers import subject_of
from muster_criteria.repair.ladder import WINDOW_DAYS_MAX, Together

TEXT_MAX = 500
PROVED = "its repair is proved"
ACTOR = "muster-repair"
PROOF_BEGINS = datetime.timedelta(hours=6)
"""How long a repaired node whose test has not begun keeps others from their repair: it may never begin."""


def open_incident(node: str, fault: Fault, why: str, prove: Sequence[str] = (), level: str = "") -> Incident:
    """Return the node's open incident of that fault, or open one. Raises UnknownNode.

    An incident of a part that was replaced is closed, since the new part's fault is another one. If a fault came back,
    evidence that was taken on another machine, or before the node served again, is dropped and due again. ``prove``:
    the stages that have to pass, at ``level`` at least, before a repair counts.
    """
    with writing() as session:
        row = access.node_row(session, node, lock=True)
        for each in _open(session, row, fault):
            if part := incidents.replaced_by(session, each):
                _close(session, row, each, f"its part was replaced by {part}", ACTOR)
        session.flush()
        found = next(iter(_open(session, row, fault)), None)
        text = "is taken up again"
        if found is None:
            found = IncidentRow(
                node=node, machine=row.machine, fault_class=fault.fault_class, device=fault.device,
                part=_part(session, node, fault), why=why[:TEXT_MAX], simulated=row.simulated,
                opened_at=access.now(), after=incidents.last_stage(session), missing=[], prove=list(prove), level=level,
            )  # fmt: skip
            session.add(found)
            session.flush()
            text = f"({fault.fault_class})"
        elif found.bundle and _outdated(session, row, found):
            found.bundle, found.bundle_sha256, found.bundle_bytes, found.missing = "", "", 0, []
            found.why = why[:TEXT_MAX]
        if not incidents.out_for(session, row, found):
            evidence = {"incident": found.id, "repair": incidents.taken_up(found)}
            access.remark(session, row, ACTOR, f"incident {found.id} {text}: {why}", evidence)
        found.asks = ""
        return to_incident(found)


def ask(incident: int, why: str) -> None:
    """Note that a person decides what is done next about an incident, until it is taken up again."""
    with writing() as session:
        row, node = _locked(session, incident)
        row.asks, row.waits = why[:TEXT_MAX], ""
        access.remark(session, node, ACTOR, f"incident {row.id} waits for a person: {why}", {"incident": row.id})


def wait(incident: int, why: str, *, asks: bool = False) -> None:
    """Note why the next repair does not begin yet, and whether a person is asked. The node's history gets one remark,
    when the waiting begins.
    """
    with writing() as session:
        row = _row(session, incident)
        if not row.waits or (asks and not row.asks):
            node, for_ = access.node_row(session, row.node, lock=True), "a person" if asks else "its repair"
            access.remark(session, node, ACTOR, f"incident {row.id} waits for {for_}: {why}", {"incident": row.id})
        row.waits, row.waits_at = why[:TEXT_MAX], access.now()
        row.asks = row.waits if asks else ""


def keep_bundle(incident: int, bundle: Bundle) -> Incident:
    """Note where an incident's evidence is. Raises UnknownIncident."""
    with writing() as session:
        row = _row(session, incident)
        row.bundle, row.bundle_sha256, row.bundle_bytes = bundle.path, bundle.sha256, bundle.bytes
        row.missing = list(bundle.missing)
        node = access.node_row(session, row.node)
        lacks = f", {len(bundle.missing)} pieces are missing" if bundle.missing else ""
        text = f"evidence of incident {row.id}: {bundle.path} ({bundle.bytes} bytes{lacks})"
        kept = {"incident": row.id, "bundle": bundle.path, "sha256": bundle.sha256}
        access.remark(session, node, ACTOR, text, kept)
        return to_incident(row)


def close(incident: int, why: str, actor: str = ACTOR) -> None:
    """Close an incident; does nothing if it is closed already. Raises UnknownIncident."""
    with writing() as session:
        row, node = _locked(session, incident)
        if row.closed_at is None:
            _close(session, node, row, why, actor)


def get_incident(incident: int) -> Incident:
    """The incident with this number. Raises UnknownIncident."""
    with reading() as session:
        return to_incident(_row(session, incident))


def find(node: str = "", limit: int | None = None, *, still_open: bool = False) -> list[Incident]:
    """Incidents, the newest first, of the present machine of ``node`` if it is given. Raises UnknownNode.

    ``still_open``: only those that are open, of present machines.
    """
    with reading() as session:
        query = incidents.of_machine(access.node_row(session, node)) if node else select(IncidentRow)
        if still_open:
            here = (NodeRow.name == IncidentRow.node) & (NodeRow.machine == IncidentRow.machine)
            query = query.join(NodeRow, here).where(IncidentRow.closed_at.is_(None))
        rows = session.scalars(query.order_by(IncidentRow.id.desc()).limit(limit))
        return [to_incident(each) for each in rows]


def of_parts(node: str) -> list[Incident]:
    """The incidents of the parts that sit in the node now, wherever they sat, and of its present machine."""
    with reading() as session:
        row, serials = access.node_row(session, node), current_serials(session, node)
        parts = {subject_of(slot, serials) for slot in serials} - {""}
        here = (IncidentRow.node == node) & (IncidentRow.machine == row.machine)
        query = select(IncidentRow).where(or_(here, IncidentRow.part.in_(parts))).order_by(IncidentRow.id.desc())
        return [to_incident(each) for each in session.scalars(query.limit(100))]


def history(incident: Incident) -> list[Attempt]:
    """The attempts on the machine of an incident, and on its part wherever it sat, oldest first."""
    with reading() as session:
        row = _row(session, incident.id)
        return _attempts(session, row.node, row.machine, row.part)


def foreseen(node: str, fault: Fault) -> tuple[Fault, list[Attempt]]:
    """(the fault with its part, the attempts that count), as for an incident of the fault. Raises UnknownNode."""
    with reading() as session:
        row = access.node_row(session, node)
        found = (each.part for each in _open(session, row, fault) if not incidents.replaced_by(session, each))
        known = next(found, None)
        part = _part(session, node, fault) if known is None else known
        return dataclasses.replace(fault, part=part), _attempts(session, row.name, row.machine, part)


def out_for(incident: Incident) -> bool:
    """Whether the node is out of service for this incident (``incidents.out_for``). Raises UnknownIncident."""
    with reading() as session:
        return incidents.out_for(session, access.node_row(session, incident.node), _row(session, incident.id))


def under_way(node: str) -> dict[str, dict[str, str]]:
    """{name: labels, with its rack} of the other nodes of its kind, real or simulated, that are under repair now."""
    with reading() as session:
        return _under_way(session, access.node_row(session, node))


def _under_way(session: Session, node: NodeRow) -> dict[str, dict[str, str]]:
    """``under_way``: nodes whose attempt is not over, or whose proving test is under way or may begin soon.

    A node whose test gave no verdict, or did not begin in time, waits for a person and blocks no other repair.
    """
    here = (NodeRow.name == AttemptRow.node) & (NodeRow.machine == AttemptRow.machine)
    proving = (AttemptRow.outcome == Outcome.SUCCEEDED) & AttemptRow.proved.is_(None) & (NodeRow.inconclusive == 0)
    held = NodeRow.name.in_(select(LeaseRow.node).where(LeaseRow.released_at.is_(None)))
    now = access.now()
    begins = (NodeRow.state == State.REGISTERED) & or_(held, AttemptRow.ended_at.between(now - PROOF_BEGINS, now))
    tested = or_(NodeRow.state.in_(IN_FLIGHT), begins)
    query = (
        select(NodeRow)
        .join(AttemptRow, here)
        .join(IncidentRow, IncidentRow.id == AttemptRow.incident)
        .where(NodeRow.name != node.name, NodeRow.simulated == node.simulated)
        .where(or_(AttemptRow.ended_at.is_(None), proving & tested & IncidentRow.closed_at.is_(None)))
    )
    return {each.name: {**each.labels, "rack": each.rack} for each in session.scalars(query)}


def reserve(incident: int, rung: str, key: RunKey, together: Together | None = None) -> Attempt:
    """Reserve an attempt before it is carried out, and move the node into repair, in one transaction.

    ``together``: how many nodes may be under repair at a time. Raises LeaseLost unless the run holds the node,
    NodeLeased if another attempt is not over, IllegalMove, with ``Refusal.TOGETHER`` for a node that has to wait.
    """
    try:
        with writing() as session:
            access.take_turns(session, "repair")
            found, node = _locked(session, incident)
            if not access.holds(session, node.name, key):
                raise LeaseLost(f"{node.name} is not held by run {key.run_id}: nothing is repaired")
            labels = {**node.labels, "rack": node.rack}
            if together and (full := rules.no_room(labels, _under_way(session, node), together)):
                raise IllegalMove(f"{node.name} waits: {full}", Refusal.TOGETHER)
            row = AttemptRow(
                incident=found.id, node=node.name, machine=node.machine, fault_class=found.fault_class,
                device=found.device, part=found.part, rung=rung, dag_id=key.dag_id, run_id=key.run_id,
                reserved_at=access.now(),
            )  # fmt: skip
            session.add(row)
            session.flush()
            found.waits = ""
            if State(node.state) not in rules.REPAIRABLE or found.machine != node.machine:
                raise IllegalMove(f"{node.name} is in {node.state}: nothing is repaired", Refusal.NO_SUCH_MOVE)
            if found.closed_at or not found.bundle or not found.prove:
                raise IllegalMove(f"incident {incident} is closed, or has no evidence or no tests that see its fault",
                                  Refusal.EVIDENCE)  # fmt: skip
            _move(session, node, row, State.REPAIR, f"{rung} for incident {found.id} ({found.why})")
            return _to_attempt(row)
    except IntegrityError:
        raise NodeLeased(f"another repair of incident {incident}'s node is not over") from None


def order(attempt: int, before: str, what: str) -> None:
    """Record that the attempt ordered a restart (``what``) of the boot ``before``."""
    with writing() as session:
        row = session.get_one(AttemptRow, attempt)
        row.before, row.ordered, row.ordered_at = before[:TEXT_MAX], what[:TEXT_MAX], access.now()


def settle(attempt: int, outcome: Outcome, detail: str) -> Attempt:
    """Record how an attempt ended, once. After a success the node becomes registered, to be tested; otherwise it
    returns to quarantine, for the next rung or a person.
    """
    with writing() as session:
        row = session.get(AttemptRow, attempt)
        if row is None:
            raise UnknownIncident(f"there is no attempt {attempt}")
        node = access.node_row(session, row.node, lock=True)
        session.refresh(row)
        if row.ended_at is None:
            row.ended_at, row.outcome, row.detail = access.now(), str(outcome), detail[:TEXT_MAX]
            row.after = incidents.last_stage(session)
            text = f"{row.rung}: {outcome}: {detail}"
            if State(node.state) is State.REPAIR and node.machine == row.machine:
                there = State.REGISTERED if outcome is Outcome.SUCCEEDED else State.QUARANTINE
                _move(session, node, row, there, text)
            else:
                access.remark(session, node, ACTOR, text, {"attempt": row.id})
        return _to_attempt(row)


def settle_lost(node: str) -> list[Attempt]:
    """End the attempts on a node whose runs were lost: they may have been carried out, so they count.

    To be called only for the run that holds the node.
    """
    with reading() as session:
        query = select(AttemptRow.id).where(AttemptRow.node == node, AttemptRow.ended_at.is_(None))
        lost = list(session.scalars(query))
    return [settle(each, Outcome.PERMANENT, "its end was not recorded: it may have been carried out") for each in lost]


def prove(node: str) -> list[int]:
    """Close the node's incidents that its tests prove to be repaired; returns their numbers. Raises UnknownNode.

    Only a stage that can see the fault, and found its part at fault again, disproves a repair. An attempt that did not
    succeed, or whose part was replaced since, is not marked as proved.
    """
    with writing() as session:
        row = access.node_row(session, node, lock=True)
        verdicts = current_verdicts(session, row)
        closed = []
        for found in incidents.open_now(session, row):
            last = session.scalar(
                select(AttemptRow).where(AttemptRow.incident == found.id).order_by(AttemptRow.id.desc()).limit(1)
            )
            if rules.proved(to_incident(found), verdicts, incidents.after(session, found)):
                part = incidents.replaced_by(session, found)
                _close(session, row, found, f"its part was replaced by {part}" if part else PROVED, ACTOR)
                closed.append(found.id)
                if last is not None and last.outcome == Outcome.SUCCEEDED and not part:
                    last.proved = True
            elif last is not None and any(
                each.stage in found.prove for each in incidents.failed_again(session, row, found, verdicts)
            ):
                last.proved = False
        return closed


def _move(session: Session, node: NodeRow, row: AttemptRow, to: State, text: str) -> None:
    evidence = Evidence(repair=f"attempt/{row.id}", reason=text)
    states = steps(State(node.state), to) if State(node.state) is not to else ()
    for state in states:
        access.move(session, node, state, ACTOR, text, evidence)
    if not states:
        access.remark(session, node, ACTOR, text, {"attempt": row.id})


def _days_since(session: Session, row: AttemptRow) -> int:
    """The number of days with stages recorded after the attempt, by their ids; ``WINDOW_DAYS_MAX`` at most."""
    found, since = 0, row.ended_at or row.reserved_at
    while found < WINDOW_DAYS_MAX:
        later = select(StageRow.recorded_at).where(StageRow.id > row.after, StageRow.recorded_at >= since)
        first = session.scalar(later.order_by(StageRow.recorded_at).limit(1))
        if first is None:
            break
        found += 1
        since = first.replace(hour=0, minute=0, second=0, microsecond=0) + datetime.timedelta(days=1)
    return found


def _to_attempt(row: AttemptRow) -> Attempt:
    return Attempt(
        id=row.id, incident=row.incident, node=row.node, fault=Fault(row.fault_class, row.device, row.part),
        rung=row.rung, reserved_at=row.reserved_at, run=RunKey(row.dag_id, row.run_id),
        outcome=Outcome(row.outcome) if row.outcome else None, detail=row.detail, ended_at=row.ended_at,
        proved=row.proved, before=row.before, ordered=row.ordered, ordered_at=row.ordered_at,
    )  # fmt: skip


def _attempts(session: Session, node: str, machine: int, part: str) -> list[Attempt]:
    ours = (AttemptRow.node == node) & (AttemptRow.machine == machine)
    query = select(AttemptRow).where(or_(ours, AttemptRow.part == part) if part else ours)
    rows = session.scalars(query.order_by(AttemptRow.id)).all()
    return [dataclasses.replace(_to_attempt(each), days=_days_since(session, each)) for each in rows]


def _open(session: Session, node: NodeRow, fault: Fault) -> list[IncidentRow]:
    """The open incidents of the node's machine with that fault class and device, each of another part."""
    same = (fault.fault_class, fault.device)
    return [each for each in incidents.open_now(session, node) if (each.fault_class, each.device) == same]


def _outdated(session: Session, node: NodeRow, incident: IncidentRow) -> bool:
    """Whether the incident's evidence was not taken on this node, or the node entered service since."""
    here = EventRow.node == node.name
    taken = select(func.max(EventRow.id)).where(here, EventRow.evidence["bundle"].as_string() == incident.bundle)
    last = session.scalar(taken)
    entered = select(EventRow.id).where(here, EventRow.id > (last or 0), access.COMES, ~access.GOES).limit(1)
    return last is None or session.scalar(entered) is not None


def _close(session: Session, node: NodeRow, row: IncidentRow, why: str, actor: str) -> None:
    row.closed_at = access.now()
    access.remark(session, node, actor, f"incident {row.id} is closed: {why}", {"incident": row.id})


def _part(session: Session, node: str, fault: Fault) -> str:
    """The fault's part; "" if it is not known to be in the node, even if its slot holds another."""
    serials = current_serials(session, node)
    if fault.part:
        return fault.part if fault.part in {subject_of(slot, serials) for slot in serials} else ""
    return subject_of(fault.device, serials) if fault.device else ""


def _row(session: Session, incident: int) -> IncidentRow:
    row = session.get(IncidentRow, incident)
    if row is None:
        raise UnknownIncident(f"there is no incident {incident}; see `muster evidence list`")
    return row


def _locked(session: Session, incident: int) -> tuple[IncidentRow, NodeRow]:
    """The incident, read after its node is locked, and that node."""
    row = _row(session, incident)
    node = access.node_row(session, row.node, lock=True)
    session.refresh(row)
    return row, node
