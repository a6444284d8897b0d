"""One figure for all nodes, as their latest stages measured it, or over one node's life; for the Fleet page."""

from __future__ import annotations

import collections
import datetime
import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, and_, cast, func, or_, select

from muster.model.figures import NodeFigure, Point
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import MeasurementRow, NodeRow, RunRow, StageRow
from muster.store.decisions.current import PRESENT
from muster_criteria.labels import Key

RECENT = datetime.timedelta(days=90)
"""Older stages are not read: each node is tested at least weekly."""
SAMPLED = 200
"""How many of the latest stages give the metrics that can be chosen."""
POINTS_MAX = 4000
_LABELS = cast(MeasurementRow.labels, Text)


def figures(key: Key) -> dict[str, NodeFigure]:
    """{node: this figure}, from the last conclusive stage of its present machine within ``RECENT``."""
    newest = (
        select(func.max(StageRow.id).label("id"), StageRow.node)
        .join(NodeRow, PRESENT)
        .where(StageRow.current, StageRow.verdict.in_(access.CONCLUSIVE))
        .where(StageRow.recorded_at >= access.now() - RECENT)
        .group_by(StageRow.node, StageRow.stage)
        .subquery()
    )
    row = MeasurementRow
    # An exact limit has the same floor and ceiling (0 mismatches): there the greatest value is the worst.
    floors = func.count().filter(row.floor.is_not(None), or_(row.ceiling.is_(None), row.ceiling != row.floor))
    query = (
        select(
            newest.c.node, row.device, _LABELS.label("labels"), func.min(row.value).label("least"),
            func.max(row.value).label("most"), floors.label("floors"),
            func.count().filter(row.value < row.floor).label("below"),
            func.count().filter(row.ok.is_(False)).label("failed"),
        )
        .join(row, row.stage == newest.c.id)
        .where(_about(key))
        .group_by(newest.c.node, row.device, _LABELS)
    )  # fmt: skip
    found = collections.defaultdict[str, list[Any]](list)
    with reading() as session:
        for each in session.execute(query):
            if _key(each.device, key.metric, each.labels, key.unit) == key:
                found[each.node].append(each)
    return {node: _worst(devices, key.unit) for node, devices in found.items()}


def _worst(devices: Sequence[Any], unit: str) -> NodeFigure:
    floored = any(each.floors for each in devices)
    less = floored or any(each.below for each in devices)
    value = min(each.least for each in devices) if less else max(each.most for each in devices)
    return NodeFigure(value, unit, floored, not any(each.failed for each in devices))


def judged() -> list[Key]:
    """The figures that have a limit in the latest ``SAMPLED`` stages, sorted."""
    latest = select(StageRow.id).order_by(StageRow.id.desc()).limit(SAMPLED).scalar_subquery()
    query = _keys().where(MeasurementRow.stage.in_(latest), MeasurementRow.value.is_not(None))
    return _read(query.where(or_(MeasurementRow.floor.is_not(None), MeasurementRow.ceiling.is_not(None))))


def of_node(node: str, runs: int = 30) -> list[Key]:
    """The figures that have values in the latest ``runs`` runs of the node's present machine, sorted."""
    latest = (
        select(RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(RunRow.node == node, RunRow.machine == NodeRow.machine)
        .order_by(RunRow.id.desc())
        .limit(runs)
    )
    query = _keys().join(StageRow, MeasurementRow.stage == StageRow.id)
    return _read(query.where(StageRow.run.in_(latest), StageRow.current, MeasurementRow.value.is_not(None)))


def life(node: str, key: Key) -> list[Point]:
    """The values of one figure in the runs of the node's present machine, oldest first; at most ``POINTS_MAX``."""
    query = (
        select(MeasurementRow, StageRow.recorded_at, RunRow.run_id, StageRow.level)
        .join(StageRow, MeasurementRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(RunRow.node == node, RunRow.machine == NodeRow.machine, StageRow.current, _about(key))
        .order_by(MeasurementRow.id.desc())
        .limit(POINTS_MAX)
    )
    with reading() as session:
        rows = list(session.execute(query))
    return [
        Point(
            at=at, run_id=run_id, level=level, device=row.device,
            labels=access.to_labels(row.labels), value=row.value, unit=row.unit, floor=row.floor, ceiling=row.ceiling,
        )
        for row, at, run_id, level in reversed(rows)
        if row.value is not None and Key.of(row.device, row.metric, access.to_labels(row.labels), row.unit) == key
    ]  # fmt: skip


def _about(key: Key) -> ColumnElement[bool]:
    """A condition for rows of this figure with a value; may also match more labels, or kinds with the same prefix."""
    row = MeasurementRow
    labels = [row.labels[name].as_string() == text for name, text in key.labels]
    alike = row.metric == key.metric, row.unit == key.unit, row.device.startswith(key.kind, autoescape=True)
    return and_(*alike, row.value.is_not(None), *labels)


def _keys() -> Select[str, str, str, str]:
    row = MeasurementRow
    return select(row.device, row.metric, _LABELS, row.unit).distinct()


def _read(query: Select[str, str, str, str]) -> list[Key]:
    with reading() as session:
        return sorted({_key(*row) for row in session.execute(query)})


def _key(device: str, metric: str, labels: str, unit: str) -> Key:
    return Key.of(device, metric, access.to_labels(json.loads(labels)), unit)
