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
from airflow.sdk import Param, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from muster import store
from muster.admission import answers, service
from muster.admission.answers import ADMIT, RETEST, RMA
from muster.errors import MusterError
from muster.integration import runid
from muster.integration.airflow_api import REASON
from muster.model.dags import ADMISSION, HELD_VERDICT
from muster.model.questions import Question
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators import forms
from muster.operators.testing import claims
from muster.reporting import notices
from muster.rules.lifecycle.gate import Admit, Refuse
from muster.settings import settings
from muster_criteria.text import as_markdown

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

log = logging.getLogger(__name__)

OPTIONS = [ADMIT, RETEST, RMA]


class AskOperator(HITLOperator):
    """Asks a person a run's question about a node, and waits for the answer without a worker or a trigger.

    What the question is about, and the answer with the login that Airflow reports for it, are stored in the records.
    XCom is not used, since anyone who may start a run may write it. Each run asks once. A timeout is recorded in the
    node's history.

    ``look``: returns the question about a node as {subject, body}. ``whether``: the question as a predicate of the node
    ("enters production"), for the message of a timeout.
    """

    def __init__(self, *, look: Callable[[str], dict[str, str]], whether: str, **kwargs: Any) -> None:
        super().__init__(subject="", body="", **kwargs)
        self.look = look
        self.whether = whether

    def execute(self, context: Context) -> Any:
        """Ask the question, unless this run's question is already answered."""
        node, key = _asked(context)
        dag_run: Any = context["dag_run"]
        with claims.failing_at_once():
            claims.refuse_unknown(dag_run.conf or {}, *self.dag.params)
            known = store.questions.find(key, dag_run.run_after)
            if known is not None and known.answered_at is not None:
                self.log.info("run %s has its answer already: %s", key.run_id, known.option)
                return None
            about = store.questions.newest(node)  # first: what arrives while the question is composed is newer
            question = self.look(node)
            options = [str(option) for option in self.options]
            store.questions.put(key, node, about, question["subject"], options, dag_run.run_after)
        # Airflow keeps the text of a question that has no answer when its run is cleared.
        as_of = f"This is as of {store.clock.now():%Y-%m-%d %H:%M} UTC; the Fleet page shows what is known now."
        self.subject, self.body = question["subject"], f"{question['body']}\n\n{as_of}"
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Store the answer. Raises AirflowFailException on a timeout."""
        node, key = _asked(context)
        if event.get("error_type") == "timeout":
            raise AirflowFailException(unanswered(node, key, whether=self.whether))
        record_answer(key, super().execute_complete(context, event))


def _asked(context: Context) -> tuple[str, RunKey]:
    """The node that is asked about, and the run that asks."""
    dag_run: Any = context["dag_run"]
    return str(context["params"]["node"]), RunKey.of(dag_run)


def record_answer(key: RunKey, answer: Mapping[str, Any]) -> None:
    """Store an answer in the form in which Airflow delivers it to the task that asked."""
    (option,) = answer["chosen_options"]
    user = answer.get("responded_by_user") or {}
    person = str(user.get("name") or user.get("id") or "")
    reason = str((answer.get("params_input") or {}).get(REASON) or "").strip()
    store.questions.answer(key, str(option), person, reason)


def decision(
    look: Callable[[str], dict[str, str]],
    carry_out: Callable[[RunKey], str],
    *,
    whether: str,
    options: list[str],
    retest: str,
) -> None:
    """Wire the tasks of a person's decision in the current DAG: ask, carry out, re-test.

    ``look``, ``whether``: see ``AskOperator``. ``retest``: the DAG that tests the node if the option is RETEST.
    """
    ask = AskOperator(
        task_id="ask",
        look=look,
        whether=whether,
        options=options,
        # Without a minimum length: Airflow validates the default when the task starts. The records refuse an empty one.
        params={REASON: Param("", type="string", title="Reason", description_md="It is recorded with your name.")},
        response_timeout=datetime.timedelta(hours=settings().approval_hours),
    )

    @task(task_id="carry_out", retries=5, on_failure_callback=lost)
    def decide(dag_run: Any = None) -> str:
        """Carry out the decision under that person's name."""
        return carry_out(RunKey.of(dag_run))

    @task(task_id="tests")
    def to_start(params: Any = None, dag_run: Any = None) -> list[dict[str, Any]]:
        """Returns the test to start, if the answer was to test the node again."""
        return tests(RunKey.of(dag_run), str(params["level"]))

    @task(task_id="lost", trigger_rule="one_failed")
    def ask_again(params: Any = None, dag_run: Any = None) -> list[dict[str, Any]]:
        """Returns the run to start that asks again if the answer was not carried out; [] if there was no answer."""
        return asked_again(RunKey.of(dag_run), dict(params))

    carried_out: Any = decide()
    started: Any = to_start()
    lost_answer: Any = ask_again()
    ask >> carried_out >> [started, lost_answer]
    forms.starting("retest", retest).expand_kwargs(started)
    forms.starting("ask_again", ask.dag_id).expand_kwargs(lost_answer)


def tests(key: RunKey, level: str) -> list[dict[str, Any]]:
    """Returns the TriggerDagRunOperator arguments of the test that the answer to that run requests; [] if none."""
    asked = store.questions.find(key)
    if asked is None or asked.option != RETEST or asked.settled_at is None:
        return []
    reason = f"a person requested it in {key.run_id}"
    conf: dict[str, Any] = {"node": asked.node, "level": level, "reason": reason}
    if key.dag_id == ADMISSION:  # the test of a node in service takes no pool
        conf["pool"] = store.nodes.get(asked.node).pool or None
    return [{"trigger_run_id": runid.asked_by(asked.node, key.run_id), "conf": conf}]


def lost(context: Context) -> None:
    """Notify people that an answer was not carried out: its question is closed, and another run asks it again.

    If a person marked the task, there is no answer; housekeeping then asks again about a held verdict.
    """
    node, key = _asked(context)
    asked = store.questions.find(key)
    why = f"the answer in run {key.run_id} of {key.dag_id} was not carried out: {context.get('exception')}"
    again = f"no question is open any more: start the DAG {key.dag_id} again to ask it"
    if key.dag_id == HELD_VERDICT or (asked is not None and asked.answered_at is not None):
        again = "the question is asked again, unless it is settled"
    notices.notify(f"answer lost/{key}", f"{node}: {why}; {again}: see `muster approve`", of=node, each=True)


def asked_again(key: RunKey, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the TriggerDagRunOperator arguments of the run that asks again after that run lost its answer.

    [] if there is no answer (as after a timeout), if it was settled, or if it was to admit the node, which is in
    production with a certificate newer than the question. The new run asks only what the records show as still open.
    """
    asked = store.questions.find(key)
    if asked is None or asked.answered_at is None or asked.settled_at is not None:
        return []
    node = store.nodes.get(asked.node)
    given, serves = store.certificates.newest(asked.node), node.state is State.PRODUCTION and not node.shadow
    if asked.option == ADMIT and serves and not node.held_run and given and given.issued_at >= asked.asked_at:
        return []
    reason = f"answer of {asked.answered_at} lost in {key.run_id}"
    return [{"trigger_run_id": runid.run_id(asked.node, reason), "conf": dict(params)}]


def unanswered(node: str, key: RunKey, *, whether: str) -> str:
    """Record that the question got no answer, and return the message. The node keeps its state."""
    state = store.nodes.get(node).state
    waited = f"no answer within {settings().approval_hours:g} hours to whether {node} {whether}"
    message = f"{waited}: it stays {state}; start the DAG {key.dag_id} again to ask again"
    store.verdicts.record_unanswered(node, message, key)
    return message


def look(node: str) -> dict[str, str]:
    """Returns the question as {subject, body}.

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
        *(f"- {as_markdown(reason)}" for reason in reasons or ("the gate admits it, but its run has ended",)),
        "",
        f"**{ADMIT}**: into production, under your name. **{RETEST}**: qualify it again. **{RMA}**: return it.",
    ]
    return {"subject": f"Admit {node} to production?", "body": "\n".join(lines)}


def carry_out(key: RunKey) -> str:
    """Carry out the answer to the question of that run, once. Returns the option.

    Raises AirflowException while another run holds the node or the re-test cannot begin; AirflowFailException without
    a recorded answer of a named person with a reason, or if the node's evidence is newer than the question.
    """
    asked = answered(key)
    if asked.settled_at is not None:
        log.info("%s: %s was carried out before", asked.node, asked.option)
        service.carry_out(asked.node)  # a worker may have died after the records were updated
        return asked.option
    try:
        answers.check_test(asked.option, store.nodes.get(asked.node), key)
    except MusterError as error:  # retried: the re-test cannot begin now
        raise AirflowException(f"{asked.option}: {error}") from error
    with claims.leased_for_decision(asked.node, key, asked.option, asked.person):
        answers.settle(asked, f"{settings().run_page(key.dag_id, key.run_id)}/tasks/ask/required_actions")
    log.info("%s: %s, by %s: %s", asked.node, asked.option, asked.person, asked.reason)
    return asked.option


def answered(key: RunKey) -> Question:
    """The question of that run with its answer. Raises AirflowFailException if no answer is recorded."""
    asked = store.questions.find(key)
    if asked is None or asked.answered_at is None:
        raise AirflowFailException(
            f"no answer to run {key.run_id} of {key.dag_id} is recorded: an answer is given on the question's page in "
            "Airflow, on the Fleet page or by `muster approve`, never by marking a task"
        )
    return asked
