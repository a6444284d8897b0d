"""The verdict as the note of its DAG run, for those who read Airflow's own list of runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from muster import store
from muster.errors import MusterError
from muster.integration.airflow_api import AirflowClient
from muster.model.runs import RunKey
from muster.settings import settings
from muster_criteria.model import Verdict
from muster_criteria.text import as_markdown
from muster_reports.text import mark

log = logging.getLogger(__name__)

NOTE_CHARS = 1000
"""Airflow refuses longer notes."""
LIMIT_S = 10.0
NEXT_LINE = "  \n"
"""Airflow shows a note as Markdown, in which a single line end is a space."""


def annotate(key: RunKey) -> None:
    """Add a line for each node below the run's note, with the login of the settings, since a task has none.

    Without one it does nothing; errors are logged, since the records and the mail hold the same.
    """
    current = settings()
    if not (current.airflow_username or current.airflow_token.get_secret_value()):
        return
    lines = [
        f"{mark(run.simulated)}{as_markdown(run.node)}: {run.verdict}: {as_markdown(run.headline)}"
        for run in store.runs.find(run=key)
        if run.verdict is not None
    ]
    if not lines:
        return
    try:
        with AirflowClient.from_settings(timeout_s=LIMIT_S) as airflow:
            airflow.set_note(key.dag_id, key.run_id, below(airflow.note(key.dag_id, key.run_id), sorted(lines)))
    except MusterError as error:
        log.warning("the run's note does not show its verdict: %s", error)


def below(note: str, lines: Sequence[str]) -> str:
    """``note`` and below it ``lines``, without lines of an earlier call; what is too long is cut from ``lines``."""
    of = {line.partition(": ")[0] for line in lines}
    ours = tuple(f"{name}: {verdict}: " for name in of for verdict in Verdict)
    kept = [line for line in note.splitlines() if not line.startswith(ours)]
    above = "\n".join(kept).rstrip()
    head = f"{above}\n\n" if above else ""
    room, text = NOTE_CHARS - len(head), NEXT_LINE.join(lines)
    if room < 1:
        return note
    return head + (text if len(text) <= room else f"{text[: room - 1]}…")
