"""One run as files that other tools read: JSON, its figures as Parquet, results and telemetry as the node sent them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.errors import MusterError
from muster.model.runs import RunKey
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import ArtifactRow, EventRow, MeasurementRow, RunRow, StageRow
from muster.store.testing import reporting
from muster.store.testing.stages import RESULT, TELEMETRY

FIGURES = (
    "probe", "metric", "device", "labels", "unit", "value", "text", "samples", "spread", "floor", "ceiling", "source",
    "ok",
)  # fmt: skip
"""The columns of a figure as it was judged; ``labels`` as JSON."""


def run(key: RunKey, folder: Path, *, node: str = "") -> list[Path]:
    """Write the run (of ``node``, if it tests several) into ``folder``, new or empty, and return the files.

    ``run.json`` (the report, with the node's events and, by stage, the hash that the agent gave of itself),
    ``measurements.parquet`` (a row for each figure: its stage and ``FIGURES``), and for each stage the files from the
    node that are still kept: ``{stage}.result.json`` and ``{stage}.telemetry.jsonl.gz``.
    Raises UnknownRun, and MusterError if the folder is not empty or cannot be written.
    """
    report = json.loads(reporting.run(key, node=node).result_json)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise MusterError(f"{folder} is not empty, and an export replaces no file; name a new folder")
        with reading() as session:
            run = access.run_row(session, key, node)
            query = select(StageRow).where(StageRow.run == run.id, StageRow.current).order_by(StageRow.id)
            stages = list(session.scalars(query))
            report["agents"] = {each.stage: each.agent_sha256 for each in stages}
            return [
                _write_json(session, run, report, folder / "run.json"),
                _write_table(session, stages, folder / "measurements.parquet"),
                *_raw(session, stages, RESULT, folder, "result.json"),
                *_raw(session, stages, TELEMETRY, folder, "telemetry.jsonl.gz"),
            ]
    except OSError as error:
        raise MusterError(
            f"the run cannot be exported to {folder}: {error.strerror or error}; choose another"
        ) from None


def _write_json(session: Session, run: RunRow, report: dict[str, Any], path: Path) -> Path:
    events = session.scalars(select(EventRow).where(EventRow.node == run.node).order_by(EventRow.id))
    report["events"] = [
        {
            "at": event.at.isoformat(), "from": event.from_state, "to": event.to_state, "actor": event.actor,
            "login": event.login, "reason": event.reason, "evidence": event.evidence,
        }
        for event in events
    ]  # fmt: skip
    with path.open("x", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    return path


def _write_table(session: Session, stages: list[StageRow], path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[object]] = {name: [] for name in ("stage", *FIGURES)}
    for stage in stages:
        of_stage = select(*(getattr(MeasurementRow, name) for name in FIGURES)).where(MeasurementRow.stage == stage.id)
        for row in session.execute(of_stage.order_by(MeasurementRow.id)):
            columns["stage"].append(stage.stage)
            for name, value in row._asdict().items():
                columns[name].append(json.dumps(value) if name == "labels" else value)
    # Types are fixed, since a column without values would have none, and files of several runs could not be combined.
    kinds = {"value": pa.float64(), "samples": pa.int64(), "spread": pa.float64(), "floor": pa.float64(),
             "ceiling": pa.float64(), "ok": pa.bool_()}  # fmt: skip
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in columns])
    with path.open("xb") as file:
        pq.write_table(pa.table(columns, schema), file)
    return path


def _raw(session: Session, stages: list[StageRow], kind: str, folder: Path, suffix: str) -> list[Path]:
    """Write one kind of the files that the node sent, a stage at a time, since some are large."""
    written = []
    for stage in stages:
        data = session.scalar(select(ArtifactRow.data).where(ArtifactRow.stage == stage.id, ArtifactRow.kind == kind))
        if data is not None:
            path = folder / f"{stage.stage}.{suffix}"
            with path.open("xb") as file:
                file.write(data)
            written.append(path)
    return written
