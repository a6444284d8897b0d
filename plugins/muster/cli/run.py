"""``muster qualify``, ``muster runs``, ``muster export``: start tests, show and export runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster import acting
from muster.cli import dry, show
from muster.cli.node import AsJson
from muster.errors import AirflowUnreachable, MusterError
from muster.settings import settings

if TYPE_CHECKING:
    from muster.integration.airflow_api import AirflowClient
    from muster.records import RunRecord, StageSummary

DAG = "node_qualification"
LEVELS = ("demo", "short", "standard", "long")
UNANSWERED_MAX = 20
"""So many requests in a row may fail before ``--watch`` gives up."""
WELL = ("PASS", "WARN", "PROVISIONAL")

OfNode = Annotated[str, typer.Option("--node", help="Which node, if the run tests several.")]

app = typer.Typer(no_args_is_help=True)


def qualify(
    nodes: Annotated[list[str], typer.Argument(help="The nodes to test.")],
    level: Annotated[str, typer.Option(help="How thoroughly: demo, short, standard or long.")] = "standard",
    reason: Annotated[
        str, typer.Option(help="Why; the same node is tested once for the same reason.")
    ] = "new hardware",
    force: Annotated[bool, typer.Option("--force", help="Test even a node that is in use.")] = False,
    force_reason: Annotated[str, typer.Option(help="Why a node in use is tested; shown on the report.")] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Wait; show each stage and its verdict as it comes.")] = False,
    dry_run: dry.DryRun = False,
) -> None:
    """Test nodes, one DAG run each, from intake to qualified."""
    from muster import records
    from muster.integration.airflow_api import AirflowClient
    from muster.integration.runid import run_id

    if level not in LEVELS:
        raise MusterError(f"there is no level {level!r}: give one of {', '.join(LEVELS)}")
    if force != bool(force_reason.strip()):
        raise MusterError("testing a node that is in use needs both --force and --force-reason 'why'")
    known = {node: records.get_node(node) for node in nodes}
    if dry_run:
        if not dry.qualification(list(dict.fromkeys(nodes)), DAG, level, reason, force_reason.strip()):
            raise typer.Exit(1)
        return
    started: dict[str, str] = {}
    refused = False
    with AirflowClient.from_settings() as airflow:
        for node, record in known.items():
            conf = {"node": node, "level": level, "reason": reason}
            if record.pool:
                conf["pool"] = record.pool
            if force:
                conf["force_reason"] = f"{force_reason.strip()} ({settings().who}, {acting.current()})"
            try:
                dry.startable(record, DAG, run_id(node, reason), level, reason, force_reason.strip())
                airflow.trigger(DAG, run_id(node, reason), conf)
            except MusterError as error:
                typer.echo(f"muster: {node}: {error}", err=True)
                refused = True
                continue
            started[node] = run_id(node, reason)
            typer.echo(f"{node}: run {started[node]} is started")
        if started and airflow.is_paused(DAG):
            typer.echo(f"muster: the DAG {DAG} is paused: the runs wait until you unpause it in Airflow", err=True)
        well = _watch(airflow, started) if watch else True
    if refused or not well:
        raise typer.Exit(1)


@app.command("list")
def list_(
    node: Annotated[str, typer.Option(help="Only runs of this node.")] = "",
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only runs that have not ended.")] = False,
    limit: Annotated[int, typer.Option(help="At most so many, latest first.", min=1)] = 50,
    json: AsJson = False,
) -> None:
    """List runs, latest first."""
    from muster import records

    runs = records.list_runs(node=node, unfinished=unfinished, limit=limit)
    if json:
        show.as_json(runs)
        return
    show.table(
        ["run", "node", "level", "verdict", "began", "headline", ""],
        [
            [run.run_id, run.node, run.level, run.verdict or "running", show.when(run.started_at), run.headline,
             "simulated" if run.simulated else ""]
            for run in runs
        ],
        empty="no such runs; start one with `muster qualify NODE`",
    )  # fmt: skip


@app.command("show")
def show_(
    run_id: Annotated[str, typer.Argument(help="The run's id.")], node: OfNode = "", json: AsJson = False
) -> None:
    """Show a run: its stages, their verdicts, and what was found."""
    from muster import records

    run = records.find_run(run_id, node=node)
    report = records.run_report(run.dag_id, run.run_id, node=run.node)
    if json:
        typer.echo(report.result_json)
        return
    show.facts(
        {
            "run": f"{run.run_id} of {run.dag_id}", "node": run.node, "sku": run.sku, "level": run.level,
            "reason": run.reason, "forced": run.forced, "started by": run.started_by,
            "simulated": "yes" if report.simulated else "",
            "waivers": "; ".join(report.waivers),
            "shadow": "the node stays in production whatever the test finds" if report.shadow else "",
            "verdict": run.verdict or "not yet", "headline": run.headline, "held": run.held,
            "began": show.when(run.started_at),
            "ended": show.when(run.ended_at) if run.ended_at else "",
            "state": f"{run.state_before} → {run.state_after or '…'}",
        }
    )  # fmt: skip
    typer.echo()
    rows: list[list[object]] = []
    for stage in report.stages:
        covered = stage.judgement.coverage
        counted = f"{covered.judged}/{covered.required}"
        rows.append([stage.judgement.stage, stage.judgement.verdict, counted, stage.judgement.reason])
    rows.extend([stage, "not run", "", why] for stage, why in report.not_run)
    show.table(["stage", "verdict", "coverage", "reason"], rows, empty="no stages yet")
    typer.echo()
    show.findings(found for stage in report.stages for found in stage.judgement.findings)


def export(
    run_id: Annotated[str, typer.Argument(help="The run's id.")],
    to: Annotated[Path, typer.Option(help="The folder to write to: a new or an empty one.")],
    node: OfNode = "",
) -> None:
    """Write a run as JSON and Parquet."""
    from muster import records

    run = records.find_run(run_id, node=node)
    for path in records.export_run(run.dag_id, run.run_id, to, node=run.node):
        typer.echo(str(path))


def _watch(airflow: AirflowClient, runs: dict[str, str]) -> bool:
    """Follow the runs to their ends; whether all of them went well."""
    from muster.integration.airflow_api import RUN_OVER

    pending, seen = dict(runs), dict.fromkeys(runs, "")
    judged: set[tuple[str, StageSummary]] = set()
    failures = 0
    while pending:
        try:
            for node, run_id in list(pending.items()):
                state = airflow.run_state(DAG, run_id)
                states = airflow.task_states(DAG, run_id)
                at = ", ".join(f"{task}{_AT_WORK[its]}" for task, its in states.items() if its in _AT_WORK)
                for stage in _stages(run_id):
                    if (node, stage) not in judged:
                        judged.add((node, stage))
                        typer.echo(f"{node}: {stage.stage}: {stage.verdict}: {stage.reason}")
                if at and at != seen[node]:
                    seen[node] = at
                    typer.echo(f"{node}: {at}")
                if state is None or state in RUN_OVER:
                    del pending[node]
            failures = 0
        except AirflowUnreachable as error:
            # The runs go on without us; a busy API server answers again.
            failures += 1
            if failures > UNANSWERED_MAX:
                raise
            typer.echo(f"muster: {error}; asking again", err=True)
        if pending:
            time.sleep(settings().poll_seconds)
    ended = [(node, _recorded(run_id)) for node, run_id in runs.items()]
    show.table(
        ["node", "verdict", "state", "headline"],
        [
            [node, run.verdict or "", run.state_after or "", run.headline] if run else [node, "", "", "not recorded"]
            for node, run in ended
        ],
        empty="nothing was started",
    )
    return all(run is not None and run.verdict in WELL for _, run in ended)


_AT_WORK = {
    "running": "", "deferred": "", "awaiting_input": " (waits for an answer)", "up_for_retry": " (to be tried again)"
}  # fmt: skip
"""By a task's state in Airflow, what ``--watch`` shows behind its name."""


def _stages(run_id: str) -> list[StageSummary]:
    from muster import records
    from muster.errors import UnknownRun

    try:
        return records.run_stages(DAG, run_id)
    except UnknownRun:
        return []


def _recorded(run_id: str) -> RunRecord | None:
    from muster import records
    from muster.errors import UnknownRun

    try:
        return records.get_run(DAG, run_id)
    except UnknownRun:
        return None
