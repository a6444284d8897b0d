"""Incidents, their evidence, and the attempts to repair them: an attempt is reserved before it is carried out."""

from __future__ import annotations

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from muster.errors import UnknownIncident
from muster.model.repairs import Bundle, Fault, Incident
from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import NodeRow
from muster.store.database.repairs import IncidentRow
from muster.store.machines.parts import current_serials
from muster_criteria.context.waivers import subject_of

TEXT_MAX = 500
ACTOR = "muster-repair"


def open_incident(node: str, fault: Fault, why: str) -> Incident:
    """Return the node's open incident of that fault, or open one. Raises UnknownNode."""
    with writing() as session:
        row = access.node_row(session, node, lock=True)
        found = session.scalar(
            _of_machine(row).where(
                IncidentRow.fault_class == fault.fault_class, IncidentRow.device == fault.device,
                IncidentRow.closed_at.is_(None),
            )
        )  # fmt: skip
        if found is None:
            found = IncidentRow(
                node=node, machine=row.machine, fault_class=fault.fault_class, device=fault.device,
                part=fault.part or _part(session, node, fault.device), why=why[:TEXT_MAX], simulated=row.simulated,
                opened_at=access.now(), missing=[],
            )  # fmt: skip
            session.add(found)
            session.flush()
            _note(session, row, f"incident {found.id} ({fault.fault_class}): {why}", {"incident": found.id})
        return _to_incident(found)


def keep_bundle(incident: int, bundle: Bundle) -> Incident:
    """Note where an incident's evidence is. Raises UnknownIncident."""
    with writing() as session:
        row = _row(session, incident)
        row.bundle, row.bundle_sha256, row.bundle_bytes = bundle.path, bundle.sha256, bundle.bytes
        row.missing = list(bundle.missing)
        node = access.node_row(session, row.node)
        lacks = f", {len(bundle.missing)} pieces are missing" if bundle.missing else ""
        _note(session, node, f"evidence of incident {row.id}: {bundle.path} ({bundle.bytes} bytes{lacks})",
              {"incident": row.id, "bundle": bundle.path, "sha256": bundle.sha256})  # fmt: skip
        return _to_incident(row)


def close(incident: int, why: str, actor: str = ACTOR) -> None:
    """Close an incident. Harmless if it is closed. Raises UnknownIncident."""
    with writing() as session:
        row = _row(session, incident)
        node = access.node_row(session, row.node, lock=True)
        if row.closed_at is None:
            row.closed_at = access.now()
            _note(session, node, f"incident {row.id} is closed: {why}", {"incident": row.id}, actor)


def get_incident(incident: int) -> Incident:
    """Raises UnknownIncident."""
    with reading() as session:
        return _to_incident(_row(session, incident))


def incidents(node: str = "", limit: int = 100) -> list[Incident]:
    """Incidents, the newest first, of the present machine of ``node`` if it is given. Raises UnknownNode."""
    with reading() as session:
        query = _of_machine(access.node_row(session, node)) if node else select(IncidentRow)
        rows = session.scalars(query.order_by(IncidentRow.id.desc()).limit(limit))
        return [_to_incident(each) for each in rows]


def of_parts(node: str) -> list[Incident]:
    """The incidents of the parts that sit in the node now, wherever they sat, and of its present machine."""
    with reading() as session:
        row, serials = access.node_row(session, node), current_serials(session, node)
        parts = {subject_of(slot, serials) for slot in serials} - {""}
        here = (IncidentRow.node == node) & (IncidentRow.machine == row.machine)
        query = select(IncidentRow).where(or_(here, IncidentRow.part.in_(parts))).order_by(IncidentRow.id.desc())
        return [_to_incident(each) for each in session.scalars(query.limit(100))]


def _of_machine(node: NodeRow) -> Select[IncidentRow]:
    return select(IncidentRow).where(IncidentRow.node == node.name, IncidentRow.machine == node.machine)


def _part(session: Session, node: str, device: str) -> str:
    return subject_of(device, current_serials(session, node)) if device else ""


def _row(session: Session, incident: int) -> IncidentRow:
    row = session.get(IncidentRow, incident)
    if row is None:
        raise UnknownIncident(f"there is no incident {incident}; see `muster evidence list`")
    return row


def _note(session: Session, node: NodeRow, reason: str, evidence: dict[str, object], actor: str = ACTOR) -> None:
    state = State(node.state)
    access.write_event(session, node.name, state, state, actor, reason, evidence)


def _to_incident(row: IncidentRow) -> Incident:
    bundle = Bundle(row.bundle, row.bundle_sha256, row.bundle_bytes, tuple(row.missing)) if row.bundle else None
    return Incident(
        row.id, row.node, Fault(row.fault_class, row.device, row.part), row.why, row.opened_at, row.simulated, bundle,
        row.closed_at,
    )  # fmt: skip
