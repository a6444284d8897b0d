"""The versions of drivers and firmware that a fleet runs, as each node's latest intake recorded them."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Collection
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from muster.store.database.engine import reading
from muster.store.database.models import MeasurementRow, NodeRow, RunRow, StageRow
from muster.store.fleet.measured import NOT_PEERS

if TYPE_CHECKING:
    from muster_criteria.context.versions import Running

STAGE = "intake"


def versions(
    sku: str, node: str, parts: Collection[str], *, simulated: bool, before: datetime.datetime | None = None
) -> Running:
    """{part: {version: how many other nodes of the SKU run it}}, as recorded ``before`` (now)."""
    if not parts:
        return {}
    latest = (
        select(func.max(StageRow.id))
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(StageRow.stage == STAGE, StageRow.measured > 0, RunRow.machine == NodeRow.machine)
        .where(NodeRow.sku == sku, NodeRow.name != node, NodeRow.simulated == simulated, RunRow.simulated == simulated)
        .where(NodeRow.state.not_in(NOT_PEERS))
        .group_by(RunRow.node)
    )
    if before is not None:
        latest = latest.where(StageRow.recorded_at < before)
    query = (
        select(MeasurementRow.metric, MeasurementRow.text, func.count(RunRow.node.distinct()).label("nodes"))
        .join(StageRow, MeasurementRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(StageRow.id.in_(latest), MeasurementRow.metric.in_(parts), MeasurementRow.text.is_not(None))
        .group_by(MeasurementRow.metric, MeasurementRow.text)
    )
    found: dict[str, dict[str, int]] = collections.defaultdict(dict)
    with reading() as session:
        for metric, version, nodes in session.execute(query):
            found[metric][str(version)] = nodes
    return dict(found)
