"""What nodes sent, byte by byte, as it is kept beside the verdicts: for judging it again together with others."""

from __future__ import annotations

import dataclasses
import datetime

from sqlalchemy import select

from muster.records.database import access
from muster.records.database.engine import reading
from muster.records.database.models import Artifact, StageRecord
from muster.records.stages import CHASSIS, RESULT, TELEMETRY
from muster_criteria.model import Verdict


@dataclasses.dataclass(frozen=True)
class StageBytes:
    """The bytes behind a stage's standing verdict, and when it was spoken; None for what was never had, or is gone.

    ``chassis``: what the node's BMC told, as ``muster.judging.chassis.Chassis`` writes it.
    """

    result: bytes | None = None
    telemetry: bytes | None = None
    attempts: int = 1
    recorded_at: datetime.datetime | None = None
    chassis: bytes | None = None


@dataclasses.dataclass(frozen=True)
class StageAttempt:
    """One attempt at a stage that brought a result: its bytes, and the verdict that was spoken after it."""

    verdict: Verdict
    result: bytes


def stage_attempts(
    dag_id: str, run_id: str, stage: str, *, node: str = "", before: datetime.datetime | None = None
) -> list[StageAttempt]:
    """All attempts at ``stage`` whose results are kept, oldest first, superseded ones too. Raises UnknownRun."""
    with reading() as session:
        run = access.run_row(session, dag_id, run_id, node)
        query = (
            select(StageRecord.verdict, Artifact.data)
            .join(Artifact, Artifact.stage == StageRecord.id)
            .where(StageRecord.run == run.id, StageRecord.stage == stage, Artifact.kind == RESULT)
            .order_by(StageRecord.id)
        )
        if before is not None:
            query = query.where(StageRecord.recorded_at < before)
        return [StageAttempt(Verdict(each.verdict), each.data) for each in session.execute(query)]


def stage_bytes(dag_id: str, run_id: str, stage: str, *, node: str = "") -> StageBytes | None:
    """What stands of ``stage``, of ``node`` if the run tests several; None if nothing was. Raises UnknownRun."""
    with reading() as session:
        run = access.run_row(session, dag_id, run_id, node)
        query = select(StageRecord).where(StageRecord.run == run.id, StageRecord.stage == stage, StageRecord.current)
        row = session.scalar(query)
        if row is None:
            return None
        rows = session.execute(select(Artifact.kind, Artifact.data).where(Artifact.stage == row.id))
        kept = {each.kind: each.data for each in rows}
        return StageBytes(kept.get(RESULT), kept.get(TELEMETRY), row.attempts, row.recorded_at, kept.get(CHASSIS))
