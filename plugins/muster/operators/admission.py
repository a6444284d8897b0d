"""The tasks around a person's decision on one node: what the gate says, the question, and what the answer does.

Each is a plain function of run ids and values; the DAG file makes tasks of them. Nobody holds the node while a person
thinks, so the gate is asked again when the answer is there.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import records
from muster.admission import entry
from muster.errors import MusterError
from muster.lifecycle.gate import Admit, Refuse
from muster.lifecycle.transitions import State
from muster.operators import claims
from muster.settings import settings

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

log = logging.getLogger(__name__)

ADMIT, RETEST, RMA = "Admit", "Re-test", "RMA"
OPTIONS = [ADMIT, RETEST, RMA]

REASON = "decision_reason"
"""The form's field. A field with the name of a parameter of the DAG arrives filled in with the run's own value."""

MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>#|!"})
"""Escapes what Markdown would read as markup."""


class AskOperator(HITLOperator):
    """Waits for a person without a worker or a trigger; that nobody answered in time stands in the node's history.

    ``whether``: what is asked about the node, for that sentence ("enters production").
    """

    def __init__(self, *, whether: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.whether = whether

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Hand the answer on, or fail with a sentence."""
        if event.get("error_type") == "timeout":
            dag_run: Any = context["dag_run"]
            node = context["params"]["node"]
            raise AirflowFailException(unanswered(node, dag_run.dag_id, dag_run.run_id, whether=self.whether))
        return super().execute_complete(context, event)


def question(*, whether: str, options: list[str]) -> AskOperator:
    """The task that asks a person what the task ``look`` has put together."""
    reason = Param("", type="string", minLength=1, title="Reason", description_md="It is recorded with your name.")
    return AskOperator(
        task_id="ask",
        whether=whether,
        subject="{{ ti.xcom_pull(task_ids='look')['subject'] }}",
        body="{{ ti.xcom_pull(task_ids='look')['body'] }}",
        options=options,
        params={REASON: reason},
        response_timeout=datetime.timedelta(hours=settings().approval_hours),
        # Airflow can take a task that goes on at once for one that was killed: then the person is asked again.
        retries=2,
        retry_delay=datetime.timedelta(seconds=30),
    )


def retest(dag_id: str) -> TriggerDagRunOperator:
    """The task that starts one run of ``dag_id`` for the node, because the person asked for it."""
    return TriggerDagRunOperator(
        task_id="retest",
        trigger_dag_id=dag_id,
        trigger_run_id="{{ params.node }}__asked-by-{{ run_id | replace('+', '-') | replace(':', '-') }}",
        conf={
            "node": "{{ params.node }}",
            "level": "{{ params.level }}",
            "pool": "{{ ti.xcom_pull(task_ids='look')['pool'] }}",
            "reason": "a person asked for it in {{ run_id }}",
        },
        logical_date=None,
        skip_when_already_exists=True,
    )


def unanswered(node: str, dag_id: str, run_id: str, *, whether: str) -> str:
    """Record that nobody answered; gives the sentence. The node stays where it is."""
    state = records.get_node(node).state
    waited = f"nobody answered within {settings().approval_hours:g} hours whether {node} {whether}"
    sentence = f"{waited}: it stays {state}; start the DAG {dag_id} again to ask anew"
    records.record_unanswered(node, sentence, dag_id, run_id)
    return sentence


def look(node: str) -> dict[str, str]:
    """What a person is asked, as {subject, body, pool}; skips if no decision is needed, fails if none can admit it."""
    try:
        decision, record = entry.decide_now(node), records.get_node(node)
    except MusterError as error:
        raise AirflowFailException(str(error)) from error
    if isinstance(decision, Refuse):
        raise AirflowFailException(f"{node} does not enter production: {'; '.join(decision.reasons)}")
    if isinstance(decision, Admit) and record.state is State.PRODUCTION:
        raise AirflowSkipException(f"{node} is in production already, and nothing speaks against it")
    reasons = () if isinstance(decision, Admit) else decision.reasons
    simulated = " (simulated)" if record.simulated else ""
    lines = [
        f"**{node}**{simulated}, {record.sku}, is in {record.state} and does not enter production by itself:",
        "",
        *(f"- {reason.translate(MARKDOWN)}" for reason in reasons or ("nothing, but no run holds it any more",)),
        "",
        f"**{ADMIT}**: into production, under your name. **{RETEST}**: qualify it anew. **{RMA}**: send it back.",
    ]
    return {"subject": f"Admit {node} to production?", "body": "\n".join(lines), "pool": record.pool}


def carry_out(node: str, dag_id: str, run_id: str, answer: Mapping[str, Any]) -> str:
    """Do what a person chose, under their name; returns the option. Raises AirflowException while a run holds the node.

    A person without a name or a reason moves nothing.
    """
    option, person, reason, link = answered(answer, dag_id, run_id)
    with claims.held_for_decision(node, dag_id, run_id, option):
        if option == ADMIT:
            entry.admit_by(node, person, reason, option=option, link=link, dag_id=dag_id, run_id=run_id)
        else:
            records.record_approval(node, person, option, reason, link=link, dag_id=dag_id, run_id=run_id)
        if option == RMA:
            _send_back(node, person, reason)
    log.info("%s: %s, by %s: %s", node, option, person, reason)
    return option


def answered(answer: Mapping[str, Any], dag_id: str, run_id: str) -> tuple[str, str, str, str]:
    """(option, person, reason, link to the question) of an answer to ``AskOperator``."""
    (option,) = answer["chosen_options"]
    user = answer.get("responded_by_user") or {}
    person = str(user.get("name") or user.get("id") or "")
    reason = str((answer.get("params_input") or {}).get(REASON) or "").strip()
    return str(option), person, reason, f"{settings().run_page(dag_id, run_id)}/tasks/ask/required_actions"


def _send_back(node: str, person: str, reason: str) -> None:
    path = (State.QUARANTINE, State.TRIAGE, State.RMA)
    stands = records.get_node(node).state
    for state in path[path.index(stands) + 1 if stands in path else 0 :]:
        records.move_node(node, state, person, reason)
