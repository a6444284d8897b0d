"""DAG runs that commands start: their options, checks and outcomes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster import acting
from muster.cli.airflow.follow import follow
from muster.cli.terminal import dry, show
from muster.errors import INTERRUPTED, AirflowUnreachable, MusterError
from muster.integration.runid import run_id
from muster.model.dags import NODE_QUALIFICATION
from muster.model.nodes import Node
from muster.model.runs import Run, RunKey
from muster.settings import settings
from muster_criteria.stages import LEVELS
from muster_criteria.text import one_line

if TYPE_CHECKING:
    from muster.integration.airflow_api import AirflowClient

WELL = ("PASS", "WARN", "PROVISIONAL")

Nodes = Annotated[list[str], typer.Argument(help="Names of nodes.", metavar="NODE…")]

Level = Annotated[str, typer.Option(help="How thoroughly: demo, short, standard or long.")]

Why = Annotated[str, typer.Option("--reason", help="Why; the same nodes are tested once for the same reason.")]

Force = Annotated[bool, typer.Option("--force", help="Test even a node that is in use.")]

ForceReason = Annotated[str, typer.Option(help="Why a node in use is tested; shown on the report.")]

Watch = Annotated[bool, typer.Option("--watch", help="Wait; show each stage and its verdict as it comes.")]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A DAG run to start. ``check`` says what it would do, and raises MusterError with the reason why it must not
    start. ``nodes``: those that it tests.
    """

    dag: str
    of: str
    run_id: str
    conf: Mapping[str, Any]
    check: Callable[[], dry.Would]
    nodes: tuple[Node, ...] = ()


def existing(level: str) -> None:
    """Raises MusterError for an unknown level."""
    if level not in LEVELS:
        raise MusterError(f"there is no level {level!r}: give one of {', '.join(LEVELS)}")


def known(names: Sequence[str], level: str) -> dict[str, Node]:
    """The nodes by name. Raises MusterError for an unknown level, UnknownNode."""
    from muster import store

    existing(level)
    return {name: store.nodes.get(name) for name in names}


def forced(force: bool, why: str) -> str:
    """The reason for testing a node in use, with who gives it; "" if not forced. Raises MusterError for one alone."""
    said = one_line(why).strip()
    if force != bool(said):
        raise MusterError("testing a node that is in use needs both --force and --force-reason 'why'")
    return f"{said} ({settings().who}, {acting.current()})" if force else ""


def run_of(dag: str, nodes: Sequence[Node], level: str, reason: str, force_reason: str = "", **asked: object) -> Wanted:
    """The run of ``dag`` that tests these nodes, alone or together. ``asked``: further options of a block."""
    several, reason = len(nodes) > 1, one_line(reason)
    run = run_id(f"{nodes[0].name}+{len(nodes) - 1}" if several else nodes[0].name, reason)
    conf: dict[str, Any] = {"level": level, "reason": reason}
    conf |= {"nodes": [node.name for node in nodes]} if several else {"node": nodes[0].name}
    conf |= {name: value for name, value in asked.items() if value}
    if force_reason:
        conf["force_reason"] = force_reason
    if nodes[0].pool and dag == NODE_QUALIFICATION:
        conf["pool"] = nodes[0].pool

    def check() -> dry.Would:
        from muster.admission.startable import startable
        from muster.rules import preview

        risks: list[str] = []
        for node in nodes:
            used_by = startable(node, dag, run, level, reason, force_reason)
            found = preview.risks_of_test(node, dry.plans_of(dag, node.sku, nodes, conf), used_by)
            risks += [f"{node.name}: {risk}" if several else risk for risk in found]
        return dry.Would(risks=tuple(risks))

    return Wanted(dag, ", ".join(node.name for node in nodes), run, conf, check, tuple(nodes))


def _rehearse(runs: Sequence[Wanted]) -> dry.Rehearsal:
    """What ``start`` would start and refuse, without a request to Airflow."""
    found = dry.Rehearsal(runs[0].dag)
    for run in runs:
        try:
            would = run.check()
        except MusterError as error:
            found.refused[run.of] = str(error)
            continue
        found.would_start[run.of] = run.run_id
        found.risks[run.of], found.effects[run.of] = would.risks, would.effects
    tested = [node for run in runs for node in run.nodes]
    found.programmes.extend(dry.programmes(found.dag, tested, runs[0].conf))
    return found


def start(runs: Sequence[Wanted], watch: bool, json: bool, dry_run: bool = False) -> None:
    """Start the runs that pass their check; exit status 1 if one was refused, or did not end well while watched.

    What was started is shown even after a failure or an interruption.
    """
    from muster import store
    from muster.integration.airflow_api import AirflowClient

    if dry_run:
        _rehearse(runs).show(json)
        return
    began = store.clock.now()
    started: dict[str, str] = {}
    refused: dict[str, str] = {}
    trouble: MusterError | KeyboardInterrupt | None = None
    ended: list[Run] = []
    with AirflowClient.from_settings() as airflow:
        try:
            for run in runs:
                sent = False
                try:
                    run.check()
                    sent = True
                    airflow.trigger(run.dag, run.run_id, run.conf, note=f"{run.of}: {run.conf['reason']}")
                    started[run.of] = run.run_id
                except AirflowUnreachable as error:  # each of the others would wait as long
                    refused[run.of] = str(error)
                    break
                except MusterError as error:
                    refused[run.of] = str(error)
                except KeyboardInterrupt as error:
                    refused[run.of] = f"interrupted{': whether its run began is not known' if sent else ''}"
                    trouble = error
                    break
        finally:  # after all: output that cannot be written must leave no run unstarted
            untried = [run.of for run in runs if run.of not in started | refused]
            _say(started, refused, untried, quiet=json)
        dag = runs[0].dag
        if trouble is None and started:
            trouble, ended = _followed(airflow, dag, started, watch, quiet=json)
    lost = _not_begun(started, ended, began) if watch and trouble is None else {}
    if json:
        show.as_json({"dag": dag, "started": started, "refused": refused, "not_tried": untried, "ended": ended,
                      "not_begun": lost})  # fmt: skip
    elif started and watch and (ended or trouble is None):
        show.table(
            ["node", "verdict", "state", "headline"],
            [[run.node, run.verdict or "", run.state_after or "", run.headline] for run in ended],
            empty="no run was recorded",
        )
        for of, why in lost.items():
            typer.echo(f"muster: {of}: {why}", err=True)
    if trouble is not None:
        goes = "; the runs go on: see `muster runs list`" if started else ""
        typer.echo(f"muster: {str(trouble) or 'interrupted'}{goes}", err=True)
        # Not by an exception that `main` handles, which would print a second JSON document.
        raise SystemExit(INTERRUPTED if isinstance(trouble, KeyboardInterrupt) else 1)
    recorded = {run.run_id for run in ended if run.verdict in WELL}
    if refused or (watch and (recorded != set(started.values()) or any(run.verdict not in WELL for run in ended))):
        raise typer.Exit(1)


def _say(started: Mapping[str, str], refused: Mapping[str, str], untried: Sequence[str], *, quiet: bool) -> None:
    if not quiet:
        for of, run in started.items():
            typer.echo(f"{of}: run {run} is started")
    for of, why in refused.items():
        typer.echo(f"muster: {of}: {why}", err=True)
    if untried:
        typer.echo(f"muster: not tried: {', '.join(untried)}", err=True)


def _followed(
    airflow: AirflowClient, dag: str, started: Mapping[str, str], watch: bool, *, quiet: bool
) -> tuple[MusterError | KeyboardInterrupt | None, list[Run]]:
    """Say if the runs wait, and follow them if ``watch``; returns (why it was given up, what was recorded of the runs
    that have ended).
    """
    from muster import store

    try:
        if airflow.is_paused(dag):
            typer.echo(f"muster: the DAG {dag} is paused: the runs wait until you unpause it in Airflow", err=True)
        return None, follow(airflow, dag, started, quiet=quiet) if watch else []
    except (MusterError, KeyboardInterrupt) as error:
        found: list[Run] = []
        with contextlib.suppress(MusterError):  # the records may be what failed
            found = [run for run_id in started.values() for run in store.runs.find(run=RunKey(dag, run_id))]
        return error, [run for run in found if run.ended_at is not None]


def _not_begun(started: Mapping[str, str], ended: Sequence[Run], since: datetime.datetime) -> dict[str, str]:
    """{nodes: why} of the runs that ended in Airflow but are not in the records."""
    from muster import store

    recorded, refusals = {run.run_id for run in ended}, store.signs.refusals(since)
    found = {}
    for of, run in started.items():
        if run in recorded:
            continue
        if why := next((refusals[name] for name in of.split(", ") if name in refusals), ""):
            found[of] = f"run {run} did not begin: {why}"
            continue
        found[of] = (
            f"run {run} ended in Airflow and is not in {store.engine.state().url}. Either its first task failed (see "
            "its log in Airflow), or its workers have other settings than this command: compare `muster settings`, "
            "run with their environment, first MUSTER_DATABASE_URL and MUSTER_HOME"
        )
    return found
