"""Stages that ended well, to be held against the failures that followed."""

from __future__ import annotations

import datetime

from sqlalchemy import select

from muster.rules.escapes import Pass
from muster.store.database.engine import reading
from muster.store.database.models import NodeRow, RunRow, StageRow
from muster_criteria.model import Verdict


def since(moment: datetime.datetime, *, simulated: bool) -> list[Pass]:
    """Returns the stages that ended with PASS or WARN since then, of present machines, real or simulated, by time."""
    query = (
        select(RunRow.node, StageRow.stage, RunRow.level, StageRow.recorded_at, RunRow.run_id)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(StageRow.current, StageRow.verdict.in_([str(Verdict.PASS), str(Verdict.WARN)]))
        .where(StageRow.recorded_at >= moment, StageRow.recorded_at >= NodeRow.machine_since)
        .where(NodeRow.simulated == simulated)
        .order_by(StageRow.recorded_at, StageRow.id)
    )
    with reading() as session:
        return [Pass(node, stage, level, at, run_id) for node, stage, level, at, run_id in session.execute(query)]
