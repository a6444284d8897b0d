"""A machine's open incidents: which verdicts show the fault again, and whether its tests prove the repair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from muster.model.repairs import Bundle, Fault, Incident
from muster.model.runs import StageVerdict
from muster.rules.service import repair as rules
from muster.store.database.models import EventRow, FindingRow, NodeRow, StageRow
from muster.store.database.repairs import AttemptRow, IncidentRow
from muster.store.decisions.current import current_verdicts
from muster.store.machines.parts import came_at, current_serials, serials_at
from muster_criteria.context.waivers import subject_of
from muster_criteria.devices import kind_of
from muster_criteria.model import FaultClass, Severity, Verdict

FAULTS_OF: Mapping[str, tuple[FaultClass, ...]] = {
    "gpu": (FaultClass.GPU, FaultClass.HBM, FaultClass.NVLINK, FaultClass.PCIE), "cpu": (FaultClass.CPU,),
    "memory": (FaultClass.DIMM,), "disk": (FaultClass.DISK,), "nic": (FaultClass.NIC, FaultClass.CABLE),
    "fan": (FaultClass.COOLING,), "psu": (FaultClass.PSU,),
}  # fmt: skip
"""{kind of device: its fault classes}; a finding of such a class on the whole node may concern any of these devices."""


def unproved(session: Session, node: NodeRow, verdicts: Sequence[tuple[int, StageVerdict]]) -> list[str]:
    """A sentence for each open incident of the node's machine whose repair ``verdicts`` do not prove."""
    return [
        f"incident {row.id} ({row.fault_class}{f' of {row.device}' if row.device else ''}) is open: no "
        f"{', '.join(row.prove)} at level {row.level} or above has passed since"
        for row in open_now(session, node)
        if row.prove and not rules.proved(to_incident(row), verdicts, after(session, row))
    ]


def open_now(session: Session, node: NodeRow) -> list[IncidentRow]:
    """The incidents of the node's machine that are open, the oldest first."""
    return list(session.scalars(of_machine(node).where(IncidentRow.closed_at.is_(None)).order_by(IncidentRow.id)))


def of_machine(node: NodeRow) -> Select[IncidentRow]:
    """The incidents of the node's machine."""
    return select(IncidentRow).where(IncidentRow.node == node.name, IncidentRow.machine == node.machine)


def after(session: Session, incident: IncidentRow) -> int:
    """The id of the last stage that was recorded before the incident's last repair ended, or before it was opened."""
    last = session.scalar(select(func.max(AttemptRow.after)).where(AttemptRow.incident == incident.id))
    return max(last or 0, incident.after)


def out_for(session: Session, node: NodeRow, incident: IncidentRow) -> bool:
    """Whether the node is in its state because of this incident: an attempt at it or a test that found its part at
    fault led there, or it was taken up in that state. False once another part sits in its place.
    """
    query = select(EventRow).where(EventRow.node == node.name, EventRow.from_state != EventRow.to_state)
    moved = session.scalar(query.order_by(EventRow.id.desc()).limit(1))
    if replaced_by(session, incident):
        return False
    since = select(EventRow.id).where(EventRow.node == node.name, EventRow.id > (moved.id if moved else 0))
    if session.scalar(since.where(EventRow.evidence["repair"].as_string() == taken_up(incident)).limit(1)):
        return True
    if moved is None:
        return False
    kind, _, number = str(moved.evidence.get("repair", "")).partition("/")
    if kind == "attempt":
        attempt = session.get(AttemptRow, int(number))
        return attempt is not None and attempt.incident == incident.id
    failed = failed_again(session, node, incident, current_verdicts(session, node))
    return any(str(each.key) == moved.evidence.get("run") for each in failed)


def taken_up(incident: IncidentRow) -> str:
    """The value of ``repair`` in the evidence of an event that begins or requests a repair of the incident."""
    return f"incident/{incident.id}"


def failed_again(
    session: Session, node: NodeRow, incident: IncidentRow, verdicts: Sequence[tuple[int, StageVerdict]]
) -> list[StageVerdict]:
    """Those of ``verdicts`` that failed since the incident's last repair, with a critical finding on its part.

    In the stages that prove its repair, a finding on the whole node counts too if it may concern the part, as when GPUs
    do not answer and their slots are not known.
    """
    before, serials = after(session, incident), current_serials(session, node.name)
    failed = {number: each for number, each in verdicts if each.verdict is Verdict.FAIL and number > before}
    query = select(FindingRow.stage, FindingRow.device, FindingRow.fault_class).where(
        FindingRow.stage.in_(list(failed)), FindingRow.severity == Severity.CRITICAL, FindingRow.waived == ""
    )
    place = "" if _other_part(session, incident) else incident.device or "node"
    faults = () if replaced_by(session, incident) else FAULTS_OF.get(kind_of(incident.device), ())
    return [
        failed[stage]
        for stage, device, fault in session.execute(query)
        if device == place
        or (incident.part and subject_of(device, serials) == incident.part)
        or (device == "node" and fault in faults and failed[stage].stage in incident.prove)
    ]


def replaced_by(session: Session, incident: IncidentRow) -> str:
    """The part, new to the node, that now sits where the incident's part was; "" if there is none or it is unknown.

    A part from another slot does not count: without module ids, the GPUs behind one that left the bus move up.
    """
    came = came_at(session, incident.node, incident.part)  # an open incident follows its part to another node
    before = serials_at(session, incident.node, max(incident.opened_at, came or incident.opened_at))
    there = _other_part(session, incident)
    return "" if there in {subject_of(slot, before) for slot in before} else there


def _other_part(session: Session, incident: IncidentRow) -> str:
    """The part that sits now where the incident's part was; "" where that is the same one, or either is not known."""
    serials, device = current_serials(session, incident.node), incident.device
    there = subject_of(device, serials)
    without_serial = subject_of(device, {slot: serial for slot, serial in serials.items() if slot != device})
    return there if device in serials and incident.part not in ("", there, without_serial) else ""


def last_stage(session: Session) -> int:
    """The number of the last stage that was recorded, of any node."""
    return session.scalar(select(func.max(StageRow.id))) or 0


def to_incident(row: IncidentRow) -> Incident:
    """The row as a value."""
    bundle = Bundle(row.bundle, row.bundle_sha256, row.bundle_bytes, tuple(row.missing)) if row.bundle else None
    return Incident(
        id=row.id, node=row.node, fault=Fault(row.fault_class, row.device, row.part), why=row.why,
        opened_at=row.opened_at, simulated=row.simulated, prove=tuple(row.prove), level=row.level, bundle=bundle,
        closed_at=row.closed_at, asks=row.asks, waits=row.waits, waits_at=row.waits_at,
    )  # fmt: skip
