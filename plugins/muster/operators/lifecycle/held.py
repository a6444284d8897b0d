"""The tasks around a verdict that the circuit breaker holds: the question to a person, and carrying out the answer.

Each is a plain function of run ids and values; the DAG files make tasks of them. The node stays in production while
the question is open.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from muster import records
from muster.admission import answers
from muster.admission.answers import KEEP, RETEST, WITHDRAW
from muster.integration import runid
from muster.lifecycle.transitions import State
from muster.operators.lifecycle.admission import MARKDOWN, answered
from muster.operators.testing import claims
from muster_criteria.model import Severity
from muster_reports.advice import least_sure

log = logging.getLogger(__name__)

OPTIONS = [WITHDRAW, RETEST, KEEP]


def questions() -> list[dict[str, Any]]:
    """Returns the arguments of TriggerDagRunOperator for one run of the DAG held_verdict per held verdict."""
    held = [node for node in records.list_nodes(states=(State.PRODUCTION,)) if node.held_run]
    runs = {node.name: records.get_run(*node.held_run.split("/", 1), node=node.name) for node in held}
    # With its time: a run that is cleared, and is under way without one, may have another verdict, to be asked about.
    return [
        {"trigger_run_id": runid.run_id(name, f"held in {run.dag_id}/{run.run_id} on {run.ended_at}"),
         "conf": {"node": name}}
        for name, run in runs.items()
        if run.ended_at
    ]  # fmt: skip


def look(node: str) -> dict[str, str]:
    """Returns the question as {subject, body, pool}. Raises AirflowSkipException if no verdict is held."""
    with claims.failing_at_once():
        record = records.get_node(node)
    _still_held(node)
    run = records.get_run(*record.held_run.split("/", 1), node=node)
    found = [each.finding for each in records.open_findings(node) if each.finding.severity is not Severity.INFO]
    simulated = " (simulated)" if record.simulated else ""
    findings = [f"{each.summary} ({each.severity}{least_sure([each])})" for each in found]
    lines = [
        f"**{node}**{simulated}, {record.sku}, serves with the verdict {run.verdict} of {run.run_id}:",
        "",
        *(f"- {sentence.translate(MARKDOWN)}" for sentence in findings or [run.headline]),
        "",
        f"The verdict is held, since {run.why_held.translate(MARKDOWN)}. Many at once may be a fault of the tests.",
        "",
        f"**{WITHDRAW}**: into quarantine, under your name. **{RETEST}**: test it now. **{KEEP}**: no change.",
    ]
    return {"subject": f"Withdraw {node} from production?", "body": "\n".join(lines), "pool": record.pool}


def carry_out(node: str, dag_id: str, run_id: str, answer: Mapping[str, Any]) -> str:
    """Carry out a person's decision and record it under their name. Returns the option.

    Raises AirflowException while the node is leased by another run, AirflowSkipException if no verdict is held.
    """
    option, person, reason, link = answered(answer, dag_id, run_id)
    with claims.leased_for_decision(node, dag_id, run_id, option, person):
        _still_held(node)
        answers.carry_out(option, node, person, reason, link=link, dag_id=dag_id, run_id=run_id)
    log.info("%s: %s, by %s: %s", node, option, person, reason)
    return option


def _still_held(node: str) -> None:
    if not records.get_node(node).held_run:
        raise AirflowSkipException(f"no verdict on {node} is held")
