"""How the ranks of the latest blocks spent their time, for metrics."""

from __future__ import annotations

import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from muster.model.figures import RankTime
from muster.store.database import access
from muster.store.database.models import FindingRow, MeasurementRow, StageRow
from muster_criteria.cluster.model import COLLECTIVES, STAGE, TRAINING

PARTS = {
    "step_compute": "compute", "step_wait": "communication", "step_input": "input", "step_update": "update",
}  # fmt: skip
_COLLECTIVE = "collective_time"


def of_session(session: Session, since: datetime.datetime) -> tuple[RankTime, ...]:
    """For each node's latest block judged ``since``: its ranks' steps, and its collectives of the largest size."""
    latest = (
        select(func.max(StageRow.id))
        .where(StageRow.stage == STAGE, StageRow.current, StageRow.recorded_at >= since).group_by(StageRow.node)
    )  # fmt: skip
    stragglers = select(FindingRow.stage, FindingRow.device).where(
        FindingRow.stage.in_(latest), FindingRow.rule == "straggler", FindingRow.waived == ""
    )
    slow = {(stage, device) for stage, device in session.execute(stragglers)}
    rows = session.execute(
        select(StageRow.node, MeasurementRow)
        .join(StageRow, MeasurementRow.stage == StageRow.id)
        .where(StageRow.id.in_(latest), MeasurementRow.value.is_not(None))
        .where(
            ((MeasurementRow.probe == TRAINING) & MeasurementRow.metric.in_(PARTS) & (MeasurementRow.device != "node"))
            | ((MeasurementRow.probe == COLLECTIVES) & (MeasurementRow.metric == _COLLECTIVE))
        )
    )  # fmt: skip
    found: dict[tuple[str, str, str], tuple[int, RankTime]] = {}
    for node, row in rows:
        labels = dict(access.to_labels(row.labels))
        part = PARTS.get(row.metric) or labels.get("op", "")
        size = int(labels["bytes"]) if labels.get("bytes", "").isdigit() else 0
        # If all devices of a node are slow, the finding is on the node and marks each of its ranks.
        straggler = (row.stage, row.device) in slow or (row.stage, "node") in slow
        key, made = (node, row.device, part), RankTime(node, row.device, part, row.value or 0.0, straggler)
        if key not in found or size >= found[key][0]:
            found[key] = (size, made)
    return tuple(made for _, (_, made) in sorted(found.items()))
