"""The verdict as the note of its DAG run, for those who read Airflow's own list of runs."""

from __future__ import annotations

import logging

from muster import records
from muster.errors import MusterError
from muster.integration.airflow_api import AirflowClient
from muster.settings import settings
from muster_criteria.text import one_line

log = logging.getLogger(__name__)

NOTE_CHARS = 1000
"""Airflow refuses longer notes."""
LIMIT_S = 10.0


def annotate(dag_id: str, run_id: str) -> None:
    """Write a line for each node into the run's note. A task cannot do it, so it takes the login of the settings.

    Without one it does nothing; what fails is logged, since the records and the mail hold the same.
    """
    current = settings()
    if not (current.airflow_username or current.airflow_token.get_secret_value()):
        return
    lines = [
        f"{'[simulated] ' if run.simulated else ''}{run.node}: {run.verdict}: {one_line(run.headline)}"
        for run in records.list_runs(run=(dag_id, run_id))
        if run.verdict is not None
    ]
    if not lines:
        return
    note = "\n".join(sorted(lines))
    try:
        with AirflowClient.from_settings(timeout_s=LIMIT_S) as airflow:
            airflow.set_note(dag_id, run_id, note if len(note) <= NOTE_CHARS else f"{note[: NOTE_CHARS - 1]}…")
    except MusterError as error:
        log.warning("the run's note does not show its verdict: %s", error)
