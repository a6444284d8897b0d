"""Faults of the controller in a run's attempts: noted in the records, or on disk while these cannot be written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging

from muster import store
from muster.errors import DatabaseNotReady, UnknownRun
from muster.model.runs import RunKey
from muster.settings import settings

log = logging.getLogger(__name__)

FOLDER = "faults"
"""In the archive, which the workers share: one file for each fault that waits for the records."""


def note(key: RunKey, stage: str, why: str, *, node: str = "") -> None:
    """Note that the controller could not do its part in the stage's last attempt."""
    try:
        store.attempts.note_fault(key, stage, why, node=node)
    except UnknownRun:
        log.warning("run %s of %s is not recorded: its fault is in this log alone", key.run_id, key.dag_id)
    except DatabaseNotReady:
        folder = settings().archive_folder / FOLDER
        fault = {"stage": stage, "why": why, "node": node}
        name = f"{_of(key)}-{_digest(stage, node)}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = folder / f".{name}"
            part.write_text(json.dumps(fault))
            part.replace(folder / f"{name}.json")
        except OSError as error:
            log.warning("the fault can be noted nowhere: %s", error)


def of_run(key: RunKey) -> dict[str, str]:
    """Returns {node: why the controller could not test it}, for nodes of this run."""
    # Only this run's files: those of other runs come and go meanwhile, and a damaged file must not affect other runs.
    for path in sorted((settings().archive_folder / FOLDER).glob(f"{_of(key)}-*.json")):
        with contextlib.suppress(FileNotFoundError):  # this task may run twice, if its worker was taken for dead
            try:
                fault = json.loads(path.read_text())
                note(key, fault["stage"], fault["why"], node=fault["node"])
            except (ValueError, KeyError, TypeError):
                note(key, "", f"it was noted in {path}, which cannot be read")
            path.unlink(missing_ok=True)
    return store.attempts.faults_of(key)


def _of(key: RunKey) -> str:
    return _digest(key.dag_id, key.run_id)


def _digest(*names: str) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32]
