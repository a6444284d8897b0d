"""Which incidents of a machine are open, and whether its tests prove that they were repaired."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from muster.model.repairs import Bundle, Fault, Incident
from muster.model.runs import StageVerdict
from muster.rules import repair as rules
from muster.store.database.models import NodeRow, StageRow
from muster.store.database.repairs import AttemptRow, IncidentRow


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
    query = select(IncidentRow).where(IncidentRow.node == node.name, IncidentRow.machine == node.machine)
    return list(session.scalars(query.where(IncidentRow.closed_at.is_(None)).order_by(IncidentRow.id)))


def after(session: Session, incident: IncidentRow) -> int:
    """The last stage that was recorded before the last repair of it ended, or before it was opened."""
    last = session.scalar(select(func.max(AttemptRow.after)).where(AttemptRow.incident == incident.id))
    return max(last or 0, incident.after)


def last_stage(session: Session) -> int:
    """The number of the last stage that was recorded, of any node."""
    return session.scalar(select(func.max(StageRow.id))) or 0


def to_incident(row: IncidentRow) -> Incident:
    """The row as a value."""
    bundle = Bundle(row.bundle, row.bundle_sha256, row.bundle_bytes, tuple(row.missing)) if row.bundle else None
    return Incident(
        row.id, row.node, Fault(row.fault_class, row.device, row.part), row.why, row.opened_at, row.simulated,
        tuple(row.prove), row.level, bundle, row.closed_at, row.asks, row.waits, row.waits_at,
    )  # fmt: skip
