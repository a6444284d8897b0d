"""``muster approve``: open questions, and their answers."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.airflow import questions
from muster.cli.terminal import dry, show
from muster.cli.terminal.options import AsJson
from muster.errors import MusterError
from muster.model.dags import ASKING
from muster.model.runs import RunKey
from muster.settings import settings


def approve(
    run: Annotated[str, typer.Argument(help="The run that asks; without it, the open questions are listed.")] = "",
    option: Annotated[str, typer.Option(help="The answer: one of the question's options.")] = "",
    reason: Annotated[str, typer.Option(help="Why; it stays in the node's history.")] = "",
    dry_run: dry.DryRun = False,
    json: AsJson = False,
) -> None:
    """List the questions that wait for a person, or answer one under your login to Airflow."""
    from muster import store
    from muster.admission import answers
    from muster.integration.airflow_api import REASON, AirflowClient

    with AirflowClient.from_settings() as airflow:
        waiting = questions.waiting(airflow)
        if not run:
            waiting = questions.answerable(waiting)
            rows = ([each.run, each.subject, ", ".join(each.options)] for each in waiting)
            columns, empty = ["run", "question", "options"], "no question waits for an answer"
            show.answer(waiting, columns, rows, json=json, empty=empty)
            return
        question = next((each for each in waiting if each.run == run), None)
        if question is None:
            raise MusterError(_not_waiting(run))
        if option not in question.options:
            raise MusterError(f"give one of its answers with --option: {', '.join(question.options)}")
        if not reason.strip():
            raise MusterError("give the reason with --reason: it stays in the node's history")
        _check_login()
        node = store.nodes.get(str(airflow.conf(question.dag, run).get("node")))
        answers.check(option, node, RunKey(question.dag, run))
        if dry_run and json:
            asked = {"subject": question.subject, "effects": answers.effects(option, node)}
            show.as_json({"dry_run": True, "run": run, "option": option, **asked})
            return
        if dry_run:
            typer.echo(f"{run}: would be answered {option}: {question.subject}")
            for effect in answers.effects(option, node):
                typer.echo(f"{run}: {effect}")
            typer.echo("dry run: nothing was answered")
            return
        airflow.hitl_answer(question.dag, run, question.task, [option], {REASON: reason.strip()})
    if json:
        show.as_json({"run": run, "option": option})
    else:
        typer.echo(f"{run}: answered {option}; the run carries it out")


def _not_waiting(run: str) -> str:
    """Why the run cannot be answered: somebody has answered it, or it asks nothing."""
    from muster import store

    for asked in filter(None, (store.questions.find(RunKey(dag, run)) for dag in ASKING)):
        if asked.answered_at is not None:
            answered = f"{asked.person or 'somebody'} answered it {asked.option} at {show.when(asked.answered_at)}"
            return f"run {run} asks no more: {answered} ({asked.reason})"
    return f"no question of run {run!r} waits for an answer: see `muster approve`"


def _check_login() -> None:
    """Raise MusterError if the answer would not come from a person, or from another person than MUSTER_PERSON.

    Otherwise the run would refuse a program's answer only later, where it is easily missed.
    """
    from muster.rules.lifecycle.decisions import is_person

    current = settings()
    login = "" if current.airflow_token.get_secret_value() else current.airflow_username
    if login and not is_person(login):
        raise MusterError(
            f"the Airflow login {login!r} names no person: answer under your own, with MUSTER_AIRFLOW_USERNAME"
        )
    person = current.person.strip()
    if login and person and _name_of(person) != _name_of(login):
        raise MusterError(
            f"the answer would be that of the Airflow login {login!r}, and MUSTER_PERSON is {person!r}: set both "
            "MUSTER_AIRFLOW_USERNAME and MUSTER_PERSON to your login to Airflow"
        )


def _name_of(login: str) -> str:
    """Returns a login for comparison: in lower case, and without its domain."""
    return login.strip().partition("@")[0].lower()
