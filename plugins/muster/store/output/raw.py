"""The stored bytes that nodes sent, for re-evaluation."""

from __future__ import annotations

import dataclasses
import datetime

from sqlalchemy import select

from muster.model.figures import BmcReading
from muster.model.runs import RunKey
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import ArtifactRow, RunRow, StageRow
from muster.store.testing.stages import CHASSIS, RESULT, TELEMETRY
from muster_criteria.chassis import Chassis
from muster_criteria.model import Lack, Verdict


@dataclasses.dataclass(frozen=True)
class StageBytes:
    """The bytes behind a stage's current verdict, and when it was recorded. None: never received, or deleted.

    ``chassis``: the BMC's readings, as ``muster_criteria.chassis.Chassis`` writes it.
    """

    result: bytes | None = None
    telemetry: bytes | None = None
    attempts: int = 1
    recorded_at: datetime.datetime | None = None
    chassis: bytes | None = None


@dataclasses.dataclass(frozen=True)
class StageAttempt:
    """One attempt at a stage that brought a result: its bytes and its verdict."""

    verdict: Verdict
    result: bytes


@dataclasses.dataclass(frozen=True)
class JudgedAttempt(StageAttempt):
    """An attempt with the SKU revision that judged it. ``replanned``: measured with other parameters than those."""

    sku: str
    sku_version: str
    replanned: bool


def bmc_readings(node: str, limit: int) -> list[BmcReading]:
    """The last ``limit`` stored readings of the node's BMC, newest first."""
    query = (
        select(ArtifactRow.created_at, StageRow.stage, RunRow.dag_id, RunRow.run_id, ArtifactRow.data)
        .join(StageRow, ArtifactRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(RunRow.node == node, ArtifactRow.kind == CHASSIS)
        .order_by(ArtifactRow.id.desc())
        .limit(limit)
    )
    with reading() as session:
        return [
            BmcReading(at, stage, dag_id, run_id, Chassis.from_json(data))
            for at, stage, dag_id, run_id, data in session.execute(query)
        ]


def stage_attempts(
    key: RunKey, stage: str, *, node: str = "", before: datetime.datetime | None = None
) -> list[JudgedAttempt]:
    """All attempts at ``stage`` whose results are kept, oldest first, superseded ones too. Raises UnknownRun."""
    with reading() as session:
        run = access.run_row(session, key, node)
        query = (
            select(StageRow.verdict, ArtifactRow.data, StageRow.sku, StageRow.sku_version, StageRow.missing)
            .join(ArtifactRow, ArtifactRow.stage == StageRow.id)
            .where(StageRow.run == run.id, StageRow.stage == stage, ArtifactRow.kind == RESULT)
            .order_by(StageRow.id)
        )
        if before is not None:
            query = query.where(StageRow.recorded_at < before)
        return [
            JudgedAttempt(Verdict(verdict), data, sku, revision, any(gap["code"] == Lack.REPLANNED for gap in missing))
            for verdict, data, sku, revision, missing in session.execute(query)
        ]


def stage_bytes(key: RunKey, stage: str, *, node: str = "") -> StageBytes | None:
    """The bytes of the current verdict of ``stage``; None without one. ``node``: if the run tests several.

    Raises UnknownRun.
    """
    with reading() as session:
        run = access.run_row(session, key, node)
        query = select(StageRow).where(StageRow.run == run.id, StageRow.stage == stage, StageRow.current)
        row = session.scalar(query)
        if row is None:
            return None
        rows = session.execute(select(ArtifactRow.kind, ArtifactRow.data).where(ArtifactRow.stage == row.id))
        kept = {each.kind: each.data for each in rows}
        return StageBytes(kept.get(RESULT), kept.get(TELEMETRY), row.attempts, row.recorded_at, kept.get(CHASSIS))
