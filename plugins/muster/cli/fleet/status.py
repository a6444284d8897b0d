"""``muster status``: the whole fleet on one screen; ``muster node keep``: a decision about a held verdict."""

from __future__ import annotations

import collections
import shlex

import typer

from muster.cli.controller import doctor
from muster.cli.controller import mail as mails
from muster.cli.fleet import start
from muster.cli.nodes import scheduler
from muster.cli.nodes.adoption import Reason, given
from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsJson, AsWho, Name
from muster.errors import MusterError
from muster.model.states import State
from muster.rules.transitions import INCONCLUSIVE_BUDGET

AIRFLOW_S = 5.0
"""The timeout (s) of a request to Airflow, for which a person waits."""


def status(json: AsJson = False) -> None:
    """Show nodes by state and what waits: nodes, verdicts and questions for a person, schedulers that differ, mails not
    sent; and what `muster doctor` finds.
    """
    from muster import store
    from muster.web import fleet

    nodes = store.nodes.find()
    kinds = sorted({node.simulated for node in nodes}) or [False]
    breakers = {("simulated" if kind else "real"): store.withdrawals.breaker(simulated=kind) for kind in kinds}
    held = {node.name: str(node.held_run) for node in nodes if node.held_run}
    paused = {node.name: node.pause for node in nodes if node.pause}
    lags = store.audit.lags()
    waiting, parked = store.outbox.waiting(), store.outbox.parked()
    states, waits = collections.Counter(node.state for node in nodes), scheduler.sentences()
    attention, uncertified = fleet.attention(store.overview.rows()), store.certificates.uncertified()
    if json:
        asked, unknown, lacks = _controller()
        shown = {kind: {"open": each.open, "withdrawn": each.withdrawn, "fleet": each.fleet, "allowed": each.allowed}
                for kind, each in breakers.items()}  # fmt: skip
        nodes_of = {str(state): states[state] for state in State}
        show.as_json({
            "nodes": nodes_of, "attention": attention, "breakers": shown, "held": held, "paused": paused,
            "uncertified": uncertified, "mails": {"waiting": waiting, "parked": parked}, "schedulers": waits,
            "audit": lags, "questions": {"open": asked, "unknown": unknown}, "lacks": lacks,
        })  # fmt: skip
        return
    show.table(
        ["state", "nodes"],
        [[state, states[state]] for state in State if states[state]],
        empty="no nodes yet; enrol some with `muster node add HOST --sku SKU` or `muster node import FILE`",
    )
    typer.echo()
    for kind, breaker in breakers.items():
        of = " (simulated nodes)" if kind == "simulated" else ""
        typer.echo(f"circuit breaker{of}: {breaker.state}: {breaker.sentence}")
    for name, run in held.items():
        typer.echo(f"{name}: the verdict of {run} is held; `muster node move {name} quarantine --reason …` withdraws "
                   f"it, `muster node keep {name} --reason …` keeps it in service")  # fmt: skip
    for name, pause in paused.items():
        typer.echo(f"{name}: its tests are {pause}; `muster node resume {name} --reason …` ends that")
    out = [each for each in attention if each.state in fleet.TODO]
    for each in out[: fleet.ATTENTION_MAX]:
        typer.echo(f"{each.node}: {each.state} since {show.when(each.since)}: {each.why} To do: {each.todo}")
    if len(out) > fleet.ATTENTION_MAX:
        typer.echo(f"and {len(out) - fleet.ATTENTION_MAX} more nodes out of service: `muster node list`")
    for sentence in waits:
        typer.echo(sentence)
    for name, why in uncertified.items():
        typer.echo(f"{name}: no valid certificate ({why}): it is tested again when it is idle")
    for node in nodes:
        if node.state is State.PRODUCTION and node.inconclusive >= INCONCLUSIVE_BUDGET:
            typer.echo(f"{node.name}: {node.inconclusive} tests in a row were inconclusive, and it serves: "
                       f"`muster node show {node.name}` gives the cause")  # fmt: skip
    if waiting:
        typer.echo(f"mails: {waiting} wait to be sent; `muster mail list` gives the reason")
    for lag in lags:
        if lag.last_error:
            typer.echo(lag.sentence)
    for mail in parked[: mails.SHOWN_MAX]:
        its_run, key = _run_of(mail.key), shlex.quote(mail.key)
        typer.echo(f"{mail.key}: not sent, given up {show.when(mail.parked_at)} ({mail.last_error}); "
                   + (f"its report: `muster runs show {its_run}`; " if its_run else "")
                   + f"then `muster mail resend {key} --reason …`, or "
                   + f"`muster mail drop {key} --reason …`")  # fmt: skip
    if len(parked) > mails.SHOWN_MAX:
        typer.echo(f"and {len(parked) - mails.SHOWN_MAX} more not sent: `muster mail list --json` gives all")
    # What waits for other hosts comes last: they may not answer.
    asked, unknown, lacks = _controller()
    for question in asked:
        typer.echo(f"{question.subject} `muster approve {question.run} --option … --reason …` answers: "
                   + ", ".join(question.options))  # fmt: skip
    if unknown:
        typer.echo(f"questions in Airflow: unknown: {unknown}")
    for lack in lacks:
        if lack.message != unknown:
            typer.echo(f"seen from this host, {lack.item}: {lack.message}" + (f"; {lack.fix}" if lack.fix else ""))


def _controller() -> tuple[list[start.Question], str, list[doctor.Check]]:
    """(the open questions, why Airflow does not give them or "", the checks that are not OK here)."""
    from muster.integration.airflow_api import AirflowClient

    asked, unknown = [], ""
    try:
        with AirflowClient.from_settings(AIRFLOW_S) as airflow:
            asked = start.questions(airflow)
    except MusterError as error:
        unknown = str(error)
    lacks = [each for each in doctor.examine(AIRFLOW_S) if each.mark is not doctor.Mark.OK]
    return asked, unknown, lacks


def _run_of(key: str) -> str:
    """The run of a mail or notification about a report, [rule/NAME/ | notify/NAME/]DAG/RUN/REPORT; "" of any other."""
    parts = key.split("/")
    if parts[0] in ("rule", "notify"):
        parts = parts[2:]
    return parts[1] if len(parts) == 3 and parts[0] not in ("notice", "flood", "digest") else ""


@messages
def keep(name: Name, reason: Reason, who: AsWho = "", dry_run: DryRun = False) -> None:
    """Keep a node in service although a verdict against it is held."""
    from muster import store

    with rehearsed(dry_run):
        node = store.withdrawals.keep_in_service(name, show.person(who), given(reason))
        typer.echo(f"{node.name} {'would stay' if dry_run else 'stays'} in {node.state}")
        if dry_run:
            risks(name, ["its findings stay open, and no decision about them is requested again"])
