"""Admission to production: the node is moved there, where the records ask the gate, and its scheduler takes it."""

from __future__ import annotations

from muster import records
from muster.admission.service import carry_out
from muster.errors import IllegalMove, Refusal
from muster.lifecycle.gate import Admit, Decision, Refuse
from muster.lifecycle.transitions import Evidence, State
from muster.records import NodeRecord


def admit(node: str, dag_id: str, run_id: str) -> Decision:
    """Admit the node to production if the gate admits it, for the run that holds it. Returns the gate's decision.

    If it is there already, only the backend's call is repeated. Raises IllegalMove if the run does not hold it.
    """
    decision = records.admission_decision(node)
    if isinstance(decision, Admit):
        if records.get_node(node).state is not State.PRODUCTION:
            evidence = Evidence(run=f"{dag_id}/{run_id}")
            records.move_node(
                node, State.PRODUCTION, "muster", "full-coverage PASS at node and cluster level", evidence
            )
        carry_out(node)
    return decision


def move(node: str, to: State, person: str, reason: str, *, dry_run: bool = False) -> NodeRecord:
    """Move the node on a person's decision; into production only as ``admit_by`` does.

    ``dry_run``: the scheduler is not called (for ``records.rehearsal``). Raises IllegalMove, UnknownNode.
    """
    record = records.get_node(node)
    if to is State.PRODUCTION and (record.state is not State.PRODUCTION or record.shadow):
        return admit_by(node, person, reason, dry_run=dry_run)
    record = records.move_node(node, to, person, reason)
    if not dry_run:
        carry_out(node)
    return record


def admit_by(
    node: str,
    person: str,
    reason: str,
    *,
    option: str = "admit",
    link: str = "",
    dag_id: str = "",
    run_id: str = "",
    dry_run: bool = False,
) -> NodeRecord:
    """Let the node into production on a person's decision, which is recorded.

    Raises IllegalMove if the gate refuses the node, or without a named person and a reason.
    """
    decision = records.admission_decision(node)
    if isinstance(decision, Refuse):
        raise IllegalMove(f"{node} does not enter production: {'; '.join(decision.reasons)}", Refusal.GATE)
    records.record_approval(node, person, option, reason, link=link, dag_id=dag_id, run_id=run_id)
    record = records.get_node(node)
    if record.state is not State.PRODUCTION:
        record = records.move_node(node, State.PRODUCTION, person, reason)
    elif record.shadow:
        records.verify_node(node, person, reason)
        record = records.get_node(node)
    if not dry_run:
        carry_out(node)
    return record
