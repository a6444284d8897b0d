"""``muster status``: the whole fleet on one screen."""

from __future__ import annotations

import collections
import shlex
from collections.abc import Collection, Iterable, Sequence

import typer

from muster.cli.airflow import questions
from muster.cli.controller import mail as mails
from muster.cli.doctor import doctor
from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson
from muster.errors import MusterError
from muster.model.attention import Attention
from muster.model.queues import AuditLag, ParkedMail
from muster.model.states import State

ATTENTION_MAX = 50
AIRFLOW_S = 5.0
"""The timeout (s) of a request to Airflow, for which a person waits."""


def status(json: AsJson = False) -> None:
    """Show nodes by state, who acts next on those that do not serve, what else waits, what `muster doctor` finds.

    With --json, `nodes` counts the real nodes by state, and `simulated` the simulated ones.
    """
    from muster import store
    from muster.judging import health
    from muster.rules.lifecycle import certificate

    nodes = store.nodes.find()
    kinds = sorted({node.simulated for node in nodes}) or [False]
    breakers = {("simulated" if kind else "real"): store.withdrawals.breaker(simulated=kind) for kind in kinds}
    paused = {node.name: node.pause for node in nodes if node.pause}
    lags = store.audit.lags()
    waiting, parked = store.outbox.waiting(), store.outbox.parked()
    states = collections.Counter((node.state, node.simulated) for node in nodes)
    attention = store.attention.collect(leaving=health.leaving())
    uncertified, racks = store.certificates.uncertified(), store.racks.held()
    if json:
        asked, unknown, lacks = _controller()
        shown = {kind: {"open": each.open, "withdrawn": each.withdrawn, "fleet": each.fleet, "allowed": each.allowed}
                for kind, each in breakers.items()}  # fmt: skip
        nodes_of, simulated = ({str(state): states[state, kind] for state in State} for kind in (False, True))
        show.as_json({
            "nodes": nodes_of, "simulated": simulated, "attention": attention, "breakers": shown,
            "paused": paused, "racks": racks, "uncertified": uncertified,
            "mails": {"waiting": waiting, "parked": parked}, "audit": lags,
            "questions": {"open": asked, "unknown": unknown}, "lacks": lacks,
        })  # fmt: skip
        return
    rows = [[state, states[state, False], states[state, True]] for state in State]
    rows, few = [row for row in rows if any(row[1:])], 3 if True in kinds else 2
    show.table(["state", "nodes", "simulated"][:few], [row[:few] for row in rows], empty=show.NO_NODES)
    typer.echo()
    if nodes:
        _show_attention(attention)
        typer.echo()
    for kind, breaker in breakers.items():
        if breaker.open:
            of = " (simulated nodes)" if kind == "simulated" else ""
            typer.echo(f"circuit breaker{of}: {breaker.state}: {breaker.sentence}")
    for rack in racks:
        typer.echo(rack.sentence)
    for name, pause in paused.items():
        typer.echo(f"{name}: its tests are {pause}; `muster node resume {name} --reason …` ends that")
    if uncertified:
        typer.echo(certificate.without_one(uncertified, {node.name for node in nodes if node.simulated}))
    _show_queues(waiting, parked, lags)
    _show_controller({each.command for each in attention})


def _show_controller(known: Collection[str]) -> None:
    """Show what other hosts know, last, since they may not answer. ``known``: commands that are shown already."""
    asked, unknown, lacks = _controller()
    for question in asked:
        command = f"muster approve {shlex.quote(question.run)} --option … --reason …"
        if command not in known:
            typer.echo(f"{question.subject} `{command}` answers: {', '.join(question.options)}")
    if unknown:
        typer.echo(f"questions in Airflow: unknown: {unknown}")
    for lack in lacks:
        if lack.message != unknown:
            typer.echo(f"seen from this host, {lack.item}: {lack.message}" + (f"; {lack.fix}" if lack.fix else ""))


def _show_attention(found: Sequence[Attention]) -> None:
    """Show the nodes that do not serve and who acts next; cases that Muster resolves by itself are only counted."""
    mine = collections.Counter(str(each.cause) for each in found if not each.listed)
    theirs = [each for each in found if each.listed]
    rows = [
        [each.node, each.state + ", serving" * each.serving + ", simulated" * each.simulated, show.when(each.since),
         each.turn, show.when(each.until) if each.until else "", each.why, each.command]
        for each in theirs[:ATTENTION_MAX]
    ]  # fmt: skip
    columns = ["not serving", "state", "since", "who acts", "until", "why", "next"]
    show.table(
        columns, rows, empty="no node waits for a person, a vendor or its scheduler" if mine else "every node serves"
    )
    if len(theirs) > ATTENTION_MAX:
        typer.echo(f"and {len(theirs) - ATTENTION_MAX} more: `muster status --json`")
    if mine:
        typer.echo("Muster acts next on: " + ", ".join(f"{number} {cause}" for cause, number in mine.most_common()))


def _show_queues(waiting: int, parked: Sequence[ParkedMail], lags: Iterable[AuditLag]) -> None:
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


def _controller() -> tuple[list[questions.Question], str, list[doctor.Check]]:
    """(the open questions, why Airflow does not give them or "", the checks that are not OK here)."""
    from muster.integration.airflow_api import AirflowClient

    asked, unknown = [], ""
    try:
        with AirflowClient.from_settings(AIRFLOW_S) as airflow:
            asked = questions.answerable(questions.waiting(airflow))
    except MusterError as error:
        unknown = str(error)
    lacks = [each for each in doctor.examine(AIRFLOW_S) if each.mark is not doctor.Mark.OK]
    return asked, unknown, lacks


def _run_of(key: str) -> str:
    """DAG/RUN of a mail or notification about a report, [rule/NAME/ | notify/NAME/]DAG/RUN/REPORT; "" of any other."""
    parts = key.split("/")
    if parts[0] in ("rule", "notify"):
        parts = parts[2:]
    return "/".join(parts[:2]) if len(parts) == 3 and parts[0] not in ("notice", "flood", "digest") else ""
