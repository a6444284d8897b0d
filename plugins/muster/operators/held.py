"""The tasks around a verdict that the circuit breaker holds: who is asked what, and what the answer does.

Each is a plain function of run ids and values; the DAG files make tasks of them. The node serves while a person thinks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import records
from muster.admission.backend import backend
from muster.errors import MusterError
from muster.integration import runid
from muster.lifecycle.transitions import State
from muster.operators import claims
from muster.operators.admission import MARKDOWN, answered
from muster_criteria.model import Severity

log = logging.getLogger(__name__)

WITHDRAW, RETEST, KEEP = "Withdraw", "Re-test", "Keep"
OPTIONS = [WITHDRAW, RETEST, KEEP]


def questions() -> list[dict[str, Any]]:
    """One run of the DAG held_verdict for each verdict that is held, as TriggerDagRunOperator takes it."""
    return [
        {"trigger_run_id": runid.run_id(node.name, f"held in {node.held}"), "conf": {"node": node.name}}
        for node in records.list_nodes(states=(State.PRODUCTION,))
        if node.held
    ]


def look(node: str) -> dict[str, str]:
    """What a person is asked, as {subject, body, pool}; skips where the verdict is held no longer."""
    try:
        record = records.get_node(node)
    except MusterError as error:
        raise AirflowFailException(str(error)) from error
    _still_held(node)
    run = records.get_run(*record.held.split("/", 1), node=node)
    found = [each.finding for each in records.open_findings(node) if each.finding.severity is not Severity.INFO]
    simulated = " (simulated)" if record.simulated else ""
    told = [f"{each.summary} ({each.severity}, confidence {each.confidence:.0%})" for each in found]
    lines = [
        f"**{node}**{simulated}, {record.sku}, goes on serving although {run.verdict} was said of it in {run.run_id}:",
        "",
        *(f"- {sentence.translate(MARKDOWN)}" for sentence in told or [run.headline]),
        "",
        f"The verdict is held, since {run.held.translate(MARKDOWN)}. So many at once may be the tests' fault.",
        "",
        f"**{WITHDRAW}**: into quarantine, under your name. **{RETEST}**: test it now. **{KEEP}**: it goes on serving.",
    ]
    return {"subject": f"Withdraw {node} from production?", "body": "\n".join(lines), "pool": record.pool}


def carry_out(node: str, dag_id: str, run_id: str, answer: Mapping[str, Any]) -> str:
    """Do what a person chose, under their name; returns the option. Raises AirflowException while a run holds the node.

    A person without a name or a reason decides nothing; what was settled meanwhile is left as it is (skips).
    """
    option, person, reason, link = answered(answer, dag_id, run_id)
    with claims.held_for_decision(node, dag_id, run_id, option):
        _still_held(node)
        records.record_approval(node, person, option, reason, link=link, dag_id=dag_id, run_id=run_id)
        if option == WITHDRAW:
            backend().withdraw(node, reason)
            records.move_node(node, State.QUARANTINE, person, reason)
        elif option == KEEP:
            records.keep_in_service(node, person, reason)
    log.info("%s: %s, by %s: %s", node, option, person, reason)
    return option


def _still_held(node: str) -> None:
    if not records.get_node(node).held:
        raise AirflowSkipException(f"no verdict on {node} is held any more")
