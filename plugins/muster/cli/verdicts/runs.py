"""``muster runs``: list and show runs."""

from __future__ import annotations

from json import loads
from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import ROWS_MAX, AsJson, OfNode
from muster.errors import Interrupted, MusterError

app = typer.Typer()


@app.command("list")
def list_(
    node: Annotated[str, typer.Option(help="Only runs of this node.")] = "",
    limit: Annotated[int, typer.Option(help="At most so many, latest first.", min=1, max=ROWS_MAX)] = 50,
    json: AsJson = False,
) -> None:
    """List runs, latest first."""
    from muster import store

    if node:
        store.nodes.get(node)
    runs = store.runs.find(node=node, limit=limit)
    show.answer(
        runs,
        ["dag", "run", "node", "level", "verdict", "began", "headline", ""],
        (
            [run.dag_id, run.run_id, run.node, run.level, run.verdict or "running", show.when(run.started_at),
             run.headline, "simulated" if run.simulated else ""]
            for run in runs
        ),
        json=json, empty="no such runs; start one with `muster qualify NODE`",
    )  # fmt: skip


@app.command()
def retry(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list them.")] = False, json: AsJson = False
) -> None:
    """Begin now what waits for hours since the clock of a scheduler, worker or triggerer was ahead."""
    from muster import store
    from muster.integration.airflow_api import AirflowClient

    trouble: MusterError | None = None
    with AirflowClient.from_settings() as client:
        late = client.postponed(store.clock.now())
        for at, task in enumerate(late if not dry_run else ()):
            try:
                client.retry(task)
            except (MusterError, KeyboardInterrupt) as error:
                trouble = Interrupted("interrupted") if isinstance(error, KeyboardInterrupt) else error
                late = late[:at]
                break
    if trouble is None or (late and not json):
        show.answer(
            late,
            ["dag", "run", "task", "would have waited until" if not dry_run else "waits until"],
            ([task.dag_id, task.run_id, task.task_id, show.when(task.until)] for task in late),
            json=json,
            empty="no task waits that a wrong clock put off",
        )
    if trouble is not None:
        for task in late:
            trouble.add_note(f"{task.dag_id} {task.run_id} {task.task_id}: begun")  # `main` prints it with the error
        raise trouble


@app.command("show")
def show_(
    run_id: Annotated[str, typer.Argument(help="The run's id, or DAG/RUN.")], node: OfNode = "", json: AsJson = False
) -> None:
    """Show a run: its stages, their verdicts, and what was found."""
    from muster import store

    run = store.runs.by_id(run_id, node=node)
    report = store.reporting.run(run.key, node=run.node)
    if json:
        show.as_json({**loads(report.result_json), "run": run})
        return
    show.facts(
        {
            "run": f"{run.run_id} of {run.dag_id}", "node": run.node, "sku": run.sku, "level": run.level,
            "reason": run.reason, "forced": run.forced, "started by": run.started_by,
            "simulated": "yes" if report.simulated else "",
            "waivers": "; ".join(report.waivers),
            "shadow": "the node stays in production whatever the test finds" if report.shadow else "",
            "verdict": run.verdict or "not yet", "headline": run.headline, "why held": run.why_held,
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
    show.findings(report.findings)
