"""One metric of all nodes, as their latest stages measured it: for the Fleet page's map."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from sqlalchemy import and_, func, or_, select

from muster.model.figures import NodeFigure
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import MeasurementRow, NodeRow, RunRow, StageRow

RECENT = datetime.timedelta(days=90)
"""Older stages are not looked at: each node is tested at least weekly."""
SAMPLED = 200
"""Stages, the latest, whose metrics can be chosen."""


def figures(metric: str, labels: Mapping[str, str]) -> dict[str, NodeFigure]:
    """{node: the metric with these labels}, from the last conclusive stage of its present machine within ``RECENT``."""
    newest = (
        select(func.max(StageRow.id).label("id"), RunRow.node)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(StageRow.current, StageRow.verdict.in_(access.CONCLUSIVE))
        .where(StageRow.recorded_at >= access.now() - RECENT)
        .where(RunRow.machine == NodeRow.machine)
        .group_by(RunRow.node, StageRow.stage)
        .subquery()
    )
    row = MeasurementRow
    query = (
        select(
            newest.c.node, func.min(row.value), func.max(row.value), func.max(row.unit), func.count(row.floor),
            func.count().filter(row.ok.is_(False)),
        )
        .join(row, row.stage == newest.c.id)
        .where(row.metric == metric, row.value.is_not(None))
        .where(and_(*(row.labels[name].as_string() == text for name, text in labels.items())))
        .group_by(newest.c.node)
    )  # fmt: skip
    with reading() as session:
        return {
            node: NodeFigure(least if floors else most, unit, bool(floors), not failed)
            for node, least, most, unit, floors, failed in session.execute(query)
        }


def judged() -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """(metric, its labels) of what has a limit in the latest ``SAMPLED`` stages, in order."""
    latest = select(StageRow.id).order_by(StageRow.id.desc()).limit(SAMPLED).scalar_subquery()
    query = (
        select(MeasurementRow.metric, MeasurementRow.labels)
        .where(MeasurementRow.stage.in_(latest), MeasurementRow.value.is_not(None))
        .where(or_(MeasurementRow.floor.is_not(None), MeasurementRow.ceiling.is_not(None)))
    )
    with reading() as session:
        return sorted(
            {
                (metric, tuple(sorted((str(name), str(text)) for name, text in labels.items())))
                for metric, labels in session.execute(query)
            }
        )
