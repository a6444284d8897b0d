"""What nodes sent, byte by byte, as it is kept beside the verdicts: for judging it again together with others."""

from __future__ import annotations

import dataclasses
import datetime

from sqlalchemy import select

from muster.records import _rows
from muster.records.engine import reading
from muster.records.models import Artifact, StageRecord
from muster.records.stages import CHASSIS, RESULT, TELEMETRY


@dataclasses.dataclass(frozen=True)
class Sent:
    """The bytes behind a stage's standing verdict, and when it was spoken; None for what was never had, or is gone.

    ``chassis``: what the node's BMC told, as ``muster.chassis.Chassis`` writes it.
    """

    result: bytes | None = None
    telemetry: bytes | None = None
    attempts: int = 1
    recorded_at: datetime.datetime | None = None
    chassis: bytes | None = None


def sent(dag_id: str, run_id: str, stage: str, *, node: str = "") -> Sent | None:
    """What stands of ``stage``, of ``node`` if the run tests several; None if nothing was. Raises UnknownRun."""
    with reading() as session:
        run = _rows.run_row(session, dag_id, run_id, node)
        query = select(StageRecord).where(StageRecord.run == run.id, StageRecord.stage == stage, StageRecord.current)
        row = session.scalar(query)
        if row is None:
            return None
        rows = session.execute(select(Artifact.kind, Artifact.data).where(Artifact.stage == row.id))
        kept = {each.kind: each.data for each in rows}
        return Sent(kept.get(RESULT), kept.get(TELEMETRY), row.attempts, row.recorded_at, kept.get(CHASSIS))
