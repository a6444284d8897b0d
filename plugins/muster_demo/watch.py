"""Progress of runs: verdicts, jobs and states from the fleet records, ends of runs from Airflow."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from muster import store
from muster.errors import AirflowRefused, AirflowUnreachable, AlreadyTriggered, UnknownRun
from muster.integration.airflow_api import RUN_OVER, AirflowClient
from muster.model.runs import OfRun
from muster_demo.table import STAGES, Row

LOOK_EVERY_S = 3.0
PATIENCE_S = 60.0
"""Seconds that Airflow's API server may fail to answer, being busy or locked out of SQLite."""

T = TypeVar("T")


def patiently(ask: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Call ``ask`` until Airflow answers; after ``patience_s`` seconds raises its last error."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except (AirflowRefused, AirflowUnreachable):
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def trigger_once(client: AirflowClient, dag_id: str, run_id: str, conf: Mapping[str, object]) -> None:
    """Trigger a run, patiently; it is no error if an earlier attempt whose response was lost has done so."""
    with contextlib.suppress(AlreadyTriggered):
        patiently(lambda: client.trigger(dag_id, run_id, conf, note="make demo"))


@dataclasses.dataclass(frozen=True)
class Run(OfRun):
    """One node's part in a DAG run."""

    node: str
    simulated: bool
    dag_id: str
    run_id: str


class Watcher:
    """The progress of ``runs``, which may grow. Airflow is queried only for runs that are not over yet.

    ``cells`` returns the cells to show for a run's node, by column.
    """

    def __init__(
        self, runs: Sequence[Run], client: AirflowClient, cells: Callable[[Run, bool], Mapping[str, str]] | None = None
    ) -> None:
        self.runs = list(runs)
        self.client = client
        self.cells = cells or stage_cells
        self.over: dict[Run, str] = {}

    def look(self) -> list[Row]:
        """One row for each node, in the order of the runs; a node is done if none of its runs is going on."""
        states = {node.name: node.state.value for node in store.nodes.find()}
        going = self.going()
        ended = {dag_id: self._ended(dag_id) for dag_id in {run.dag_id for run in going}}
        self.over |= {run: ended[run.dag_id][run.run_id] for run in going if run.run_id in ended[run.dag_id]}
        # Of each node the latest run is shown.
        latest = {run.node: run for run in self.runs}
        busy = {run.node for run in self.going()}
        return [
            Row(node, run.simulated, self.cells(run, run in self.over), states.get(node, ""), node not in busy)
            for node, run in latest.items()
        ]

    def going(self) -> list[Run]:
        """The runs that were not over at the last look."""
        return [run for run in self.runs if run not in self.over]

    def hanging(self) -> str:
        """The runs that are not over, with their tasks' states, as a sentence."""
        found = []
        for run in self.going():
            tasks = self.client.task_states(run.dag_id, run.run_id)
            at = [f"{task} {state}" for task, state in tasks.items() if state not in ("none", "success", "skipped")]
            found.append(f"{run.node} ({', '.join(at) or 'no task was started'})")
        return "; ".join(found)

    def _ended(self, dag_id: str) -> dict[str, str]:
        """{run id: state} of the DAG's runs that are over."""
        runs = patiently(lambda: self.client.runs(dag_id))
        return {run["dag_run_id"]: run["state"] for run in runs if run["state"] in RUN_OVER}


def stage_cells(run: Run, over: bool) -> dict[str, str]:
    """A cell for each stage of a run: its verdict, or "running" while a job of it is on the node."""
    try:
        verdicts = {each.stage: each.verdict.value for each in store.runs.stages(run.key)}
    except UnknownRun:
        return {}
    cells: dict[str, str] = {}
    for stage in STAGES:
        if stage in verdicts:
            cells[stage] = verdicts[stage]
        elif not over and store.runs.get_job(run.key, stage) is not None:
            cells[stage] = "running"
    return cells
