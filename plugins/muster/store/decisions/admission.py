"""The gate to production, asked by every move there, in the transaction that makes the move."""

from __future__ import annotations

import datetime

from sqlalchemy.orm import Session

from muster.errors import IllegalMove, Refusal
from muster.model.events import Evidence
from muster.model.states import State
from muster.rules import gate
from muster.rules.gate import Admit, Decision, NeedsPerson, Refuse
from muster.settings import settings
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import NodeRow
from muster.store.decisions import certificates
from muster.store.decisions.verdicts import current_verdicts, findings_now
from muster.store.decisions.waivers import machine_of, valid_waivers
from muster_criteria.context import waivers


def decision(node: str) -> Decision:
    """The gate's decision on the node by the current records. Raises UnknownNode."""
    with reading() as session:
        return decide(session, access.node_row(session, node))


def decide(session: Session, row: NodeRow) -> Decision:
    """``admission_decision`` within the caller's transaction."""
    now, machine, chosen = access.now(), machine_of(session, row), settings()
    decision = gate.decide(
        access.to_node(row),
        [verdict for _, verdict in current_verdicts(session, row)],
        findings_now(session, row),
        [each for each in valid_waivers(session, now) if waivers.concerns(each, machine)],
        limits=gate.Limits(datetime.timedelta(hours=chosen.admission_max_age_hours), chosen.admission_level),
        now=now,
    )
    enters = isinstance(decision, Admit) and row.state != State.PRODUCTION
    if enters and certificates.passed_before_change(session, row):
        return NeedsPerson(("some of its stages passed with another part, driver or firmware than it has now",))
    return decision


def check(node: str, decision: Decision, evidence: Evidence) -> None:
    """Raise IllegalMove if the gate refuses the node, or if it asks for a person and none decides."""
    if isinstance(decision, Refuse) or not (evidence.person or isinstance(decision, Admit)):
        raise IllegalMove(f"{node} does not enter production: {'; '.join(decision.reasons)}", Refusal.GATE)
