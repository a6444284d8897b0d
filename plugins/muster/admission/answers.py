"""A person's answers to the questions about a node: what each answer will do, and how it is carried out."""

from __future__ import annotations

from muster import store
from muster.admission import entry, service
from muster.admission.startable import startable
from muster.errors import NodeLeased
from muster.integration.runid import asked_by
from muster.model.dags import HELD_VERDICT, NODE_QUALIFICATION, NODE_REVALIDATION
from muster.model.nodes import Node
from muster.model.questions import Question
from muster.model.runs import RunKey
from muster.model.states import SERVING, State
from muster.rules.preview import TEST_IN_SERVICE
from muster.settings import settings

ADMIT, RETEST, RMA, WITHDRAW, KEEP = "Admit", "Re-test", "RMA", "Withdraw", "Keep"
_AFTER = {RMA: State.RMA, WITHDRAW: State.QUARANTINE}


def check(option: str, node: Node, key: RunKey) -> None:
    """Raise MusterError if that run could not carry out the answer now.

    That is the case if another run holds the node, its evidence is newer than the question, or the test cannot begin.
    """
    if lease := store.leases.get(node.name):
        raise NodeLeased(f"run {lease.run_id} of {lease.dag_id} holds {node.name}: answer when it has ended")
    store.questions.check(key)
    check_test(option, node, key)


def check_test(option: str, node: Node, key: RunKey) -> None:
    """Raise MusterError if the answer is a re-test that cannot begin now."""
    if option == RETEST:
        dag = NODE_REVALIDATION if key.dag_id == HELD_VERDICT else NODE_QUALIFICATION
        startable(
            node, dag, asked_by(node.name, key.run_id), settings().admission_level, f"requested in {key.run_id}", ""
        )


def settle(asked: Question, link: str) -> None:
    """Carry out the answer to a question once, and record it in the same transaction; then update the scheduler.

    Raises IllegalMove if it was carried out before or the node's evidence is newer than the question; else as
    ``carry_out``.
    """
    with store.engine.transaction():
        store.questions.settle(asked.key)
        carry_out(asked.option, asked.node, asked.person, asked.reason, link=link, run=asked.key)
    if asked.option != RETEST:
        service.carry_out(asked.node)


def carry_out(
    option: str,
    node: str,
    person: str,
    reason: str,
    *,
    link: str = "",
    run: RunKey | None = None,
) -> None:
    """Carry out the answer, and record it under the person's name; a re-test is only recorded: the DAG starts its run.

    The scheduler is not called. Raises IllegalMove, UnknownNode, and NoPerson without a named person and a reason.
    """
    if option == ADMIT:
        entry.admit_by(node, person, reason, option=option, link=link, run=run, dry_run=True)
        return
    with store.engine.transaction():  # an answer recorded without its effect would be shown as carried out
        store.verdicts.record_approval(node, person, option, reason, link=link, run=run)
        after = _AFTER.get(option)
        if after is not None and store.nodes.get(node).state is not after:
            store.nodes.move(node, after, person, reason)
        elif option == KEEP:
            store.withdrawals.keep_in_service(node, person, reason)


def effects(option: str, node: Node) -> tuple[str, ...]:
    """What the answer will do: to the node's state, in its scheduler, to its certificate, and which mail follows."""
    if option == RETEST:
        return _of_test(node)
    after = {ADMIT: State.PRODUCTION, **_AFTER}.get(option, node.state)
    state = f"state: {node.state} → {after}" if after is not node.state else f"state: it stays {node.state}"
    if option == ADMIT and node.shadow:
        state += ", and its shadow mode ends"
    if option == KEEP or (option == ADMIT and node.held_run):
        state += "; the verdict is no longer held, and its findings stay open"
    return state, *entry.effects(node, after, kept=option == KEEP)


def _of_test(node: Node) -> tuple[str, ...]:
    mail = "mail: the report, when the test has ended"
    if node.state not in SERVING or node.shadow:
        state = (
            "it serves during the test" if node.shadow else "its qualification begins; a FAIL puts it into quarantine"
        )
        scheduler = "no change" if node.shadow else entry.at_scheduler(node, node.state)
        return f"state: {state}", f"scheduler: {scheduler}", "certificate: no change", mail
    by_job = service.tested_by_job(node.name)
    scheduler = "a test job that gives way to users' jobs" if by_job else entry.at_scheduler(node, State.REVALIDATION)
    certificate = "a new one after a full-coverage PASS"
    return f"state: {TEST_IN_SERVICE}", f"scheduler: {scheduler}", f"certificate: {certificate}", mail
