"""One run as files that other tools read: JSON for the whole, Parquet for tables, raw results as the node sent them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.errors import MusterError
from muster.model.runs import RunKey
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import ArtifactRow, EventRow, FindingRow, MeasurementRow, RunRow, StageRow
from muster.store.output.charts import telemetry_rows
from muster.store.testing import reporting
from muster.store.testing.stages import RESULT, TELEMETRY

if TYPE_CHECKING:
    import pyarrow

ROWS = 50_000
"""Telemetry rows a row group: a 48-hour run's millions never lie in memory together."""

_ORIGIN = ("node", "sku", "sku_version", "snapshot", "dag_id", "run_id", "stage", "level", "simulated")
_MEASUREMENT = (
    "probe", "metric", "device", "unit", "value", "text", "samples", "spread", "note", "floor", "ceiling", "source",
    "ok",
)  # fmt: skip
_FINDING = (
    "rule", "metric", "device", "severity", "fault_class", "action", "observed", "expected", "source", "summary",
    "confidence", "finding_id", "waived", "measurements", "variant",
)  # fmt: skip


def run(key: RunKey, folder: Path, *, node: str = "") -> list[Path]:
    """Write the run (of ``node``, if it tests several) into ``folder``, new or empty, and return the files.

    ``run.json`` (the report, with the node's events), ``measurements.parquet``, ``findings.parquet``,
    ``telemetry.parquet`` if raw telemetry is still kept, and ``{stage}.result.json`` for each raw result still kept.
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
            return [
                _write_json(session, run, report, folder / "run.json"),
                _table(session, run, stages, MeasurementRow, _MEASUREMENT, folder / "measurements.parquet"),
                _table(session, run, stages, FindingRow, _FINDING, folder / "findings.parquet"),
                *_telemetry(session, stages, folder / "telemetry.parquet"),
                *_raw(session, stages, folder),
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
    path.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return path


def _table(
    session: Session,
    run: RunRow,
    stages: list[StageRow],
    model: type[MeasurementRow] | type[FindingRow],
    names: tuple[str, ...],
    path: Path,
) -> Path:
    """Rows of all stages, each with where it comes from; an empty table still has its columns."""
    import pyarrow
    from pyarrow import parquet

    rows = []
    for stage in stages:
        values = (
            run.node, run.sku, stage.sku_version, stage.snapshot, run.dag_id, run.run_id, stage.stage, stage.level,
            stage.simulated,
        )  # fmt: skip
        origin = dict(zip(_ORIGIN, values, strict=True))
        found: Iterable[MeasurementRow | FindingRow] = session.scalars(
            select(model).where(model.stage == stage.id).order_by(model.id)
        )
        for row in found:
            figures = {name: getattr(row, name) for name in names}
            rows.append({**origin, **figures, "labels": json.dumps(row.labels, sort_keys=True)})
    schema = pyarrow.schema([(name, _arrow_type(name)) for name in (*_ORIGIN, *names, "labels")])
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
    return path


def _arrow_type(name: str) -> pyarrow.DataType:
    import pyarrow

    if name in ("value", "spread", "floor", "ceiling", "confidence"):
        return pyarrow.float64()
    if name in ("ok", "simulated"):
        return pyarrow.bool_()
    if name == "measurements":
        return pyarrow.list_(pyarrow.string())
    return pyarrow.int64() if name == "samples" else pyarrow.string()


def _telemetry(session: Session, stages: list[StageRow], path: Path) -> list[Path]:
    import pyarrow
    from pyarrow import parquet

    kept = [(stage.stage, packed) for stage in stages if (packed := _artifact(session, stage, TELEMETRY))]
    if not kept:
        return []
    text, number = pyarrow.string(), pyarrow.float64()
    columns = {"stage": text, "t": number, "series": text, "device": text, "value": number, "state": text}
    schema = pyarrow.schema(list(columns.items()))
    with parquet.ParquetWriter(path, schema) as writer:
        for stage, packed in kept:
            for batch in _batches(stage, packed):
                writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
    return [path]


def _batches(stage: str, packed: bytes) -> Iterator[list[dict[str, Any]]]:
    """Telemetry rows in batches, without the lines that make no sense: nothing from a node is trusted."""
    batch: list[dict[str, Any]] = []
    for row in telemetry_rows(packed):
        named = row._asdict()
        batch.append({"stage": stage, "t": named.pop("second"), **named})
        if len(batch) == ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _raw(session: Session, stages: list[StageRow], folder: Path) -> list[Path]:
    written = []
    for stage in stages:
        data = _artifact(session, stage, RESULT)
        if data is not None:
            path = folder / f"{stage.stage}.result.json"
            path.write_bytes(data)
            written.append(path)
    return written


def _artifact(session: Session, stage: StageRow, kind: str) -> bytes | None:
    return session.scalar(select(ArtifactRow.data).where(ArtifactRow.stage == stage.id, ArtifactRow.kind == kind))
