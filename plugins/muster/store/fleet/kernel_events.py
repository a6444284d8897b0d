"""The recorded kernel messages of the fleet, for evaluating another kernel policy on them."""

from __future__ import annotations

from sqlalchemy import select

from muster.model.statistics import RecordedKernelEvent
from muster.store.database.engine import reading
from muster.store.database.models import MeasurementRow, NodeRow, RunRow, StageRow
from muster_criteria.kernel.judge import EVENT, event_of
from muster_criteria.xid.judge import BEGAN


def recorded(*, node: str = "") -> list[RecordedKernelEvent]:
    """All kernel messages of current verdicts, oldest first; with ``node``, of its present machine only."""
    query = (
        select(MeasurementRow, StageRow, RunRow)
        .join(StageRow, MeasurementRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(MeasurementRow.metric.in_((EVENT, BEGAN)), StageRow.current)
        .order_by(StageRow.recorded_at, MeasurementRow.id)
    )
    if node:
        query = query.where(RunRow.node == node, RunRow.machine == NodeRow.machine)
    with reading() as session:
        rows = [(row, stage, run) for row, stage, run in session.execute(query)]
        began = {stage.id: row.value for row, stage, _ in rows if row.metric == BEGAN and row.value is not None}
        found = []
        for row, stage, run in rows:
            if row.metric == EVENT:
                event = event_of(row.device, row.labels, row.text or "", row.samples)
                during = event.after(began.get(stage.id))
                found.append(
                    RecordedKernelEvent(run.node, run.sku, run.run_id, stage.stage, stage.recorded_at, event, during)
                )
        return found
