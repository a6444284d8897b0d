"""The tasks around a verdict that the circuit breaker holds: the question to a person, and carrying out the answer.

Each is a plain function of run ids and values; the DAG files make tasks of them. The node stays in production while
the question is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from muster import store
from muster.admission.answers import KEEP, RETEST, WITHDRAW
from muster.errors import IllegalMove, Refusal, UnknownRun
from muster.integration import runid
from muster.model.dags import HELD_VERDICT, MAPPED_MAX, NODE_REVALIDATION
from muster.model.events import Approval
from muster.model.nodes import Node
from muster.model.runs import Run, RunKey
from muster.model.states import State
from muster.operators.lifecycle import admission
from muster.operators.testing import claims
from muster_criteria.model import Severity
from muster_criteria.text import as_markdown
from muster_reports.advice import least_sure

OPTIONS = [WITHDRAW, RETEST, KEEP]
ASKED_MAX = 3
"""How often one question is asked if each of its runs ends without an answer. The node stays listed as held, with the
commands that decide it.
"""

Asks = Callable[[str, str], bool]


def questions(live: Asks, known: Asks) -> list[dict[str, Any]]:
    """Returns the arguments of TriggerDagRunOperator for one run of the DAG held_verdict per question.

    One question per held verdict. Another follows if newer evidence outdates it, if a re-test ended, or did not begin,
    and left the verdict held, or if a person marked the run or its tasks instead of answering. None while a run holds
    the node, whose findings would outdate it. ``live(dag_id, run_id)``: whether Airflow has that run queued or running;
    ``known``: whether it has it at all. Waivers that have expired are looked at first, since they may hold verdicts. At
    most ``MAPPED_MAX`` questions, first those not asked yet; the others follow at the next call.
    """
    store.waivers.recheck_expired()
    leased = {lease.node for lease in store.leases.live()}
    wanted: list[dict[str, Any]] = [
        # A re-test at the level of the verdict: one at a lower level would leave it held.
        {"trigger_run_id": runid.run_id(node.name, reason), "conf": {"node": node.name, "level": _held(node).level}}
        for node in store.nodes.find(states=(State.PRODUCTION,))
        if node.held_run and node.name not in leased and (reason := _why_asked(node, live, known))
    ]
    if len(wanted) > MAPPED_MAX:
        wanted.sort(key=lambda each: store.questions.find(RunKey(HELD_VERDICT, each["trigger_run_id"])) is not None)
    return wanted[:MAPPED_MAX]


def _why_asked(node: Node, live: Asks, known: Asks) -> str:
    """Returns the reason for the question's run id; "" while the held run, or a re-test of it, is under way."""
    run = _held(node)
    if run.ended_at is None:
        return ""
    # Names the newest evidence: an answer to a question about older evidence is refused.
    reason, tests = f"held by {store.questions.newest(node.name)}", _retests(node, run)
    if tests and any(live(each.dag_id, each.run_id) for each in _runs_of(tests[-1])):
        return ""
    reason += f" after {len(tests)} re-tests" if tests else ""

    def over(why: str) -> bool:
        """Whether its run ended without an answer, so that housekeeping dropped the question."""
        key = RunKey(HELD_VERDICT, runid.run_id(node.name, why))
        asked = known(key.dag_id, key.run_id) and not live(key.dag_id, key.run_id)
        return asked and store.questions.find(key) is None

    again = [reason, *(f"{reason} again {number}" for number in range(1, ASKED_MAX))]
    return next((why for why in again if not over(why)), again[-1])


def _held(node: Node) -> Run:
    if node.held_run is None:
        raise IllegalMove(f"no verdict on {node.name} is held", Refusal.NOTHING_HELD)
    return store.runs.get(node.held_run, node=node.name)


def _retests(node: Node, held: Run) -> list[Approval]:
    """The re-tests that people requested after the held run ended, oldest first."""
    chosen = [each for each in store.verdicts.approvals(node.name) if each.option == RETEST]
    return [each for each in chosen if held.ended_at and each.at >= held.ended_at and each.run]


def _runs_of(retest: Approval) -> tuple[RunKey, RunKey]:
    """Returns the run of the question and the run of the test."""
    dag_id, run_id = retest.run.split("/", 1)
    return RunKey(dag_id, run_id), RunKey(NODE_REVALIDATION, runid.asked_by(retest.node, run_id))


def _outcome(retest: Approval) -> str:
    """The outcome of a re-test that left the verdict held."""
    _, test = _runs_of(retest)
    try:
        run = store.runs.get(test, node=retest.node)
    except UnknownRun:
        return store.signs.refusals(retest.at).get(retest.node, f"not tested: see run {test.run_id} of {test.dag_id}")
    return f"{run.verdict}: {run.headline}"


def look(node: str) -> dict[str, str]:
    """Returns the question as {subject, body}. Raises AirflowSkipException if no verdict is held."""
    with claims.failing_at_once():
        record = store.nodes.get(node)
    _still_held(node)
    run = _held(record)
    found = [each.finding for each in store.verdicts.open_findings(node) if each.finding.severity is not Severity.INFO]
    simulated = " (simulated)" if record.simulated else ""
    findings = [f"{each.summary} ({each.severity}{least_sure([each])})" for each in found]
    tried = [
        f"The re-test that {each.person} requested at {each.at:%Y-%m-%d %H:%M} UTC settled nothing: {_outcome(each)}."
        for each in _retests(record, run)[-1:]
    ]
    lines = [
        f"**{node}**{simulated}, {record.sku}, serves with the verdict {run.verdict} of {run.run_id}:",
        "",
        *(f"- {as_markdown(sentence)}" for sentence in findings or [run.headline]),
        "",
        *(f"{as_markdown(sentence)}\n" for sentence in tried),
        f"The verdict is held, since {as_markdown(run.why_held)}. Many at once may be a fault of the tests.",
        "",
        f"**{WITHDRAW}**: into quarantine, under your name. **{RETEST}**: test it now. **{KEEP}**: no change.",
    ]
    return {"subject": f"Withdraw {node} from production?", "body": "\n".join(lines)}


def carry_out(key: RunKey) -> str:
    """``admission.carry_out``. Raises AirflowSkipException if no verdict on the node is held any more."""
    asked = admission.answered(key)
    if asked.settled_at is None:
        _still_held(asked.node)
    return admission.carry_out(key)


def _still_held(node: str) -> None:
    if not store.nodes.get(node).held_run:
        raise AirflowSkipException(f"no verdict on {node} is held")
