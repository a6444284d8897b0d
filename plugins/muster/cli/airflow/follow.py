"""``--watch``: follows DAG runs to their ends and shows each stage's verdict as it comes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from muster.errors import AirflowUnreachable
from muster.model.runs import UNJUDGED, Run, RunKey
from muster.settings import settings

if TYPE_CHECKING:
    from muster.integration.airflow_api import AirflowClient

UNANSWERED_MAX = 20
"""Number of requests in a row that may fail before ``--watch`` gives up."""

_AT_WORK = {
    "running": "", "deferred": "", "awaiting_input": " (waits for an answer)", "up_for_retry": " (to be tried again)",
}  # fmt: skip
"""{a task's state in Airflow: what ``--watch`` shows after its name}"""


def follow(airflow: AirflowClient, dag: str, runs: Mapping[str, str], *, quiet: bool = False) -> list[Run]:
    """Follow the runs ({nodes: run id}) to their ends; returns what was recorded of each node.

    ``quiet``: prints nothing. Raises AirflowUnreachable after ``UNANSWERED_MAX`` requests in a row without an answer.
    """
    from muster import store
    from muster.integration.airflow_api import RUN_OVER

    pending = dict(runs)
    shown: set[str] = set()
    failures = 0

    def show_once(line: str) -> None:
        if line not in shown and not quiet:
            shown.add(line)
            typer.echo(line)

    while pending:
        try:
            for of, run_id in list(pending.items()):
                state = airflow.run_state(dag, run_id)
                # A run that was deleted in Airflow has no tasks to ask for.
                states = {} if state is None else airflow.task_states(dag, run_id)
                for run in store.runs.find(run=RunKey(dag, run_id)):
                    for stage in store.runs.stages(run.key, node=run.node):
                        verdict = "" if stage.reason == UNJUDGED else f"{stage.verdict}: "
                        show_once(f"{run.node}: {stage.stage}: {verdict}{stage.reason}")
                    for name, why in waits_because(run, states):
                        show_once(f"{run.node}: {name}: to be tried again: {why}")
                if at := ", ".join(f"{task}{_AT_WORK[its]}" for task, its in states.items() if its in _AT_WORK):
                    show_once(f"{of}: {at}")
                if state is None or state in RUN_OVER:
                    del pending[of]
            failures = 0
        except AirflowUnreachable as error:
            # The runs go on without us; a busy API server answers again.
            failures += 1
            if failures > UNANSWERED_MAX:
                raise
            typer.echo(f"muster: {error}; asking again", err=True)
        if pending:
            time.sleep(settings().poll_seconds)
    return [run for run_id in runs.values() for run in store.runs.find(run=RunKey(dag, run_id))]


def waits_because(run: Run, states: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns (stage, why) of the run's stages that are tried again because the node could not be reached.

    ``states``: {task: its state in Airflow}; a stage's task has its name.
    """
    from muster import store

    waiting = [stage for stage in run.required_stages if states.get(stage) == "up_for_retry"]
    jobs = [store.runs.get_job(run.key, stage, node=run.node) for stage in waiting]
    return [(job.stage, job.note) for job in jobs if job is not None and job.note]
