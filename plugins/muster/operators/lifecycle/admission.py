"""The tasks around a person's decision on one node: the gate's decision, the question, and carrying out the answer.

Each is a plain function of run ids and values; the DAG file makes tasks of them. No run holds the node while the
question is open, so the gate decides again once there is an answer.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Param, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from muster import store
from muster.admission import answers
from muster.admission.answers import ADMIT, RETEST, RMA
from muster.errors import MusterError
from muster.integration import runid
from muster.integration.airflow_api import REASON
from muster.model.states import State
from muster.operators.testing import claims
from muster.rules.gate import Admit, Refuse
from muster.settings import settings

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

log = logging.getLogger(__name__)

OPTIONS = [ADMIT, RETEST, RMA]

MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>#|!"})
"""A translation table that escapes Markdown markup."""


class AskOperator(HITLOperator):
    """Waits for a person's answer, without a worker or a trigger. A timeout is recorded in the node's history.

    ``whether``: the question as a predicate of the node ("enters production"), for the message of a timeout.
    """

    def __init__(self, *, whether: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.whether = whether

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Returns the answer. Raises AirflowFailException on a timeout."""
        if event.get("error_type") == "timeout":
            dag_run: Any = context["dag_run"]
            node = context["params"]["node"]
            raise AirflowFailException(unanswered(node, dag_run.dag_id, dag_run.run_id, whether=self.whether))
        return super().execute_complete(context, event)


def decision(
    look: Callable[[str], dict[str, str]],
    carry_out: Callable[[str, str, str, Mapping[str, Any]], str],
    *,
    whether: str,
    options: list[str],
    retest: str,
) -> None:
    """Wire the tasks of a person's decision in the current DAG: put the question together, ask, carry out, re-test.

    ``whether``: see ``AskOperator``. ``retest``: the DAG that tests the node if the option is RETEST.
    """

    @task(task_id="look")
    def put_question(params: Any = None) -> dict[str, str]:
        """Put the question together."""
        return look(params["node"])

    ask = AskOperator(
        task_id="ask",
        whether=whether,
        subject="{{ ti.xcom_pull(task_ids='look')['subject'] }}",
        body="{{ ti.xcom_pull(task_ids='look')['body'] }}",
        options=options,
        # Without a minimum length: Airflow validates the default when the task starts. The records refuse an empty one.
        params={REASON: Param("", type="string", title="Reason", description_md="It is recorded with your name.")},
        response_timeout=datetime.timedelta(hours=settings().approval_hours),
    )

    @task(task_id="carry_out", retries=5, on_failure_callback=lost)
    def decide(answer: Any, params: Any = None, dag_run: Any = None) -> str:
        """Carry out the decision under that person's name."""
        return carry_out(params["node"], dag_run.dag_id, dag_run.run_id, answer)

    @task.short_circuit
    def wants_test(option: str) -> bool:
        """Go on only if the node is to be tested again."""
        return option == RETEST

    again = TriggerDagRunOperator(
        task_id="retest",
        trigger_dag_id=retest,
        trigger_run_id="{{ params.node }}" + runid.ASKED_BY + "{{ run_id | replace('+', '-') | replace(':', '-') }}",
        conf={
            "node": "{{ params.node }}",
            "level": "{{ params.level }}",
            "pool": "{{ ti.xcom_pull(task_ids='look')['pool'] }}",
            "reason": "a person requested it in {{ run_id }}",
        },
        logical_date=None,
        skip_when_already_exists=True,
    )

    @task(task_id="lost", trigger_rule="one_failed")
    def ask_anew(params: Any = None, dag_run: Any = None, ti: Any = None) -> list[dict[str, Any]]:
        """Returns the run to start that asks again, since the answer was not carried out; none without an answer."""
        return asked_again(dict(params), dag_run.run_id, ti.xcom_pull(task_ids="ask"))

    chosen: Any = decide(ask.output)
    put_question() >> ask
    wants_test(chosen) >> again
    lost_answer: Any = ask_anew()
    chosen >> lost_answer
    TriggerDagRunOperator.partial(
        task_id="ask_again", trigger_dag_id=ask.dag_id, logical_date=None, skip_when_already_exists=True
    ).expand_kwargs(lost_answer)


def lost(context: Context) -> None:
    """Notify people that an answer was not carried out: its question is closed, and asked again by another run."""
    dag_run: Any = context["dag_run"]
    node, dag_id, run_id = context["params"]["node"], dag_run.dag_id, dag_run.run_id
    why = f"the answer in run {run_id} of {dag_id} was not carried out: {context.get('exception')}"
    again = "the question is asked again, unless it is settled"
    store.notices.notify(f"answer lost/{dag_id}/{run_id}", f"{node}: {why}; {again}: see `muster approve`")


def asked_again(params: Mapping[str, Any], run_id: str, answer: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the arguments of TriggerDagRunOperator for the run that asks again after that run lost its answer.

    None without an answer, as after a timeout. The run looks at the records first, and asks only what is still open.
    """
    if answer is None:
        return []
    reason = f"answer of {answer.get('responded_at')} lost in {run_id}"
    return [{"trigger_run_id": runid.run_id(str(params["node"]), reason), "conf": dict(params)}]


def unanswered(node: str, dag_id: str, run_id: str, *, whether: str) -> str:
    """Record that the question got no answer, and return the message. The node keeps its state."""
    state = store.nodes.get(node).state
    waited = f"no answer within {settings().approval_hours:g} hours to whether {node} {whether}"
    message = f"{waited}: it stays {state}; start the DAG {dag_id} again to ask again"
    store.verdicts.record_unanswered(node, message, dag_id, run_id)
    return message


def look(node: str) -> dict[str, str]:
    """Returns the question as {subject, body, pool}.

    Raises AirflowSkipException if the node is in production already, AirflowFailException if the gate refuses it.
    """
    with claims.failing_at_once():
        decision, record = store.admission.decision(node), store.nodes.get(node)
    if isinstance(decision, Refuse):
        raise AirflowFailException(f"{node} does not enter production: {'; '.join(decision.reasons)}")
    if isinstance(decision, Admit) and record.state is State.PRODUCTION:
        raise AirflowSkipException(f"{node} is in production already, and the gate admits it")
    reasons = () if isinstance(decision, Admit) else decision.reasons
    simulated = " (simulated)" if record.simulated else ""
    lines = [
        f"**{node}**{simulated}, {record.sku}, is in {record.state} and needs your decision to enter production:",
        "",
        *(f"- {reason.translate(MARKDOWN)}" for reason in reasons or ("the gate admits it, but its run has ended",)),
        "",
        f"**{ADMIT}**: into production, under your name. **{RETEST}**: qualify it again. **{RMA}**: return it.",
    ]
    return {"subject": f"Admit {node} to production?", "body": "\n".join(lines), "pool": record.pool}


def carry_out(node: str, dag_id: str, run_id: str, answer: Mapping[str, Any]) -> str:
    """Carry out a person's decision and record it under their name. Returns the option.

    Raises AirflowException while a run holds the node or the re-test cannot begin, AirflowFailException without a named
    person and a reason.
    """
    option, person, reason, link = answered(answer, dag_id, run_id)
    refuse_lost(option, node, dag_id, run_id)
    with claims.leased_for_decision(node, dag_id, run_id, option, person):
        answers.carry_out(option, node, person, reason, link=link, dag_id=dag_id, run_id=run_id)
    log.info("%s: %s, by %s: %s", node, option, person, reason)
    return option


def refuse_lost(option: str, node: str, dag_id: str, run_id: str) -> None:
    """Raise AirflowException, which is tried again, if the answer is a re-test that cannot begin now."""
    try:
        answers.check_test(option, store.nodes.get(node), dag_id, run_id)
    except MusterError as error:
        raise AirflowException(f"{option}: {error}") from error


def answered(answer: Mapping[str, Any], dag_id: str, run_id: str) -> tuple[str, str, str, str]:
    """Returns (option, person, reason, link to the question) of an answer to ``AskOperator``."""
    (option,) = answer["chosen_options"]
    user = answer.get("responded_by_user") or {}
    person = str(user.get("name") or user.get("id") or "")
    reason = str((answer.get("params_input") or {}).get(REASON) or "").strip()
    return str(option), person, reason, f"{settings().run_page(dag_id, run_id)}/tasks/ask/required_actions"
