"""Faults of the controller in a run's attempts: noted in the records, or on disk while these cannot be written."""

from __future__ import annotations

import hashlib
import json
import logging

from muster import store
from muster.errors import DatabaseNotReady, UnknownRun
from muster.model.runs import RunKey
from muster.settings import settings

log = logging.getLogger(__name__)

FOLDER = "faults"
"""In MUSTER_HOME: one file for each fault that waits for the records."""


def note(key: RunKey, stage: str, why: str, *, node: str = "") -> None:
    """Note that the controller could not do its part in the stage's last attempt."""
    try:
        store.attempts.note_fault(key, stage, why, node=node)
    except UnknownRun:
        log.warning("run %s of %s is not recorded: its fault is in this log alone", key.run_id, key.dag_id)
    except DatabaseNotReady:
        folder = settings().home / FOLDER
        fault = {"dag_id": key.dag_id, "run_id": key.run_id, "stage": stage, "why": why, "node": node}
        name = hashlib.sha256(json.dumps([key.dag_id, key.run_id, stage, node]).encode()).hexdigest()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = folder / f".{name}"
            part.write_text(json.dumps(fault))
            part.replace(folder / f"{name}.json")
        except OSError as error:
            log.warning("the fault can be noted nowhere: %s", error)


def of_run(key: RunKey) -> dict[str, str]:
    """{node: why the controller could not test it} of the run's nodes that it could not."""
    for path in sorted((settings().home / FOLDER).glob("*.json")):
        fault = json.loads(path.read_text())
        if (fault["dag_id"], fault["run_id"]) == (key.dag_id, key.run_id):
            note(key, fault["stage"], fault["why"], node=fault["node"])
            path.unlink(missing_ok=True)
    return store.attempts.faults_of(key)
