"""Retention: deletes what is older than the settings allow, in small transactions."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import CursorResult, Select, delete, func, select

from muster.records import stages
from muster.records.database.engine import reading, writing
from muster.records.database.models import Artifact, MeasurementRow, Outbox, PeerSnapshot, Run, StageRecord
from muster.records.values import Purged
from muster.settings import settings

BATCH = 200
"""Stages, runs or files a transaction: what a run in progress has to wait for stays well under a second."""


def apply_retention(now: datetime.datetime | None = None, *, dry_run: bool = False) -> Purged:
    """Delete what the MUSTER_RETENTION_* settings no longer keep, or only count it; returns how much that is.

    Raw telemetry, raw results and sent mails go by their own age, measurements by their stage's, runs by their end.
    Verdicts and findings stay as long as their run; nodes, parts, leases, lifecycle events and SKU revisions for ever;
    peer snapshots as long as a verdict that is kept cites them, and the newest of each kind.
    """
    moment = now or datetime.datetime.now(datetime.UTC)
    keep = settings()

    def before(days: int) -> datetime.datetime:
        return moment - datetime.timedelta(days=days)

    old_stages = select(StageRecord.id).where(
        StageRecord.recorded_at < before(keep.retention_measurements_days),
        StageRecord.id.in_(select(MeasurementRow.stage)),
    )
    purge = _count if dry_run else _purge
    runs = 0
    if keep.retention_runs_days:
        runs = purge(Run.id, select(Run.id).where(Run.ended_at < before(keep.retention_runs_days)))
    return Purged(
        telemetry=purge(Artifact.id, _artifacts(before(keep.retention_telemetry_days), stages.TELEMETRY)),
        results=purge(Artifact.id, _artifacts(before(keep.retention_results_days), stages.RESULT, stages.CHASSIS)),
        measurements=purge(MeasurementRow.stage, old_stages),
        runs=runs,
        mails=purge(Outbox.id, select(Outbox.id).where(Outbox.sent_at < before(keep.retention_outbox_days))),
        snapshots=purge(PeerSnapshot.id, _uncited_snapshots(before(keep.retention_snapshots_days))),
    )


def _artifacts(before: datetime.datetime, *kinds: str) -> Select[int]:
    return select(Artifact.id).where(Artifact.kind.in_(kinds), Artifact.created_at < before)


def _uncited_snapshots(before: datetime.datetime) -> Select[int]:
    newest = select(func.max(PeerSnapshot.id)).group_by(PeerSnapshot.sku, PeerSnapshot.level, PeerSnapshot.simulated)
    cited = select(StageRecord.snapshot).where(StageRecord.snapshot != "")
    return select(PeerSnapshot.id).where(
        PeerSnapshot.made_at < before, PeerSnapshot.id.not_in(newest), PeerSnapshot.version.not_in(cited)
    )


def _count(column: Any, ids: Select[int]) -> int:
    """How many rows ``_purge`` would delete."""
    with reading() as session:
        return session.scalar(select(func.count()).select_from(column.class_).where(column.in_(ids))) or 0


def _purge(column: Any, ids: Select[int]) -> int:
    """Delete the rows of ``column``'s table whose ``column`` is one of ``ids``, batch by batch."""
    deleted = 0
    while True:
        with writing() as session:
            batch = list(session.scalars(ids.limit(BATCH)))
            if not batch:
                return deleted
            result = session.execute(delete(column.class_).where(column.in_(batch)))
            assert isinstance(result, CursorResult)
            deleted += result.rowcount
