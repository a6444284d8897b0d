"""The recorded device events of the fleet, for evaluating another policy on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from sqlalchemy import select

from muster.model.statistics import RecordedEvent
from muster.store.database.engine import reading
from muster.store.database.models import MeasurementRow, NodeRow, RunRow, StageRow
from muster_criteria.device_events.judge import BEGAN, EVENTS, event_of
from muster_criteria.device_events.policy import DeviceEvent


def recorded(*, node: str = "") -> list[RecordedEvent]:
    """All events of current verdicts, oldest first; with ``node``, of its present machine only."""
    query = (
        select(MeasurementRow, StageRow, RunRow, (RunRow.machine != NodeRow.machine).label("former"))
        .join(StageRow, MeasurementRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(MeasurementRow.metric.in_((*EVENTS, BEGAN)), StageRow.current)
        .order_by(StageRow.recorded_at, MeasurementRow.id)
    )
    if node:
        query = query.where(RunRow.node == node, RunRow.machine == NodeRow.machine)
    with reading() as session:
        rows = session.execute(query).all()
        began = {stage.id: row.value for row, stage, *_ in rows if row.metric == BEGAN and row.value is not None}
        return [_record(*row, began.get(row[1].id)) for row in rows if row[0].metric in EVENTS]


def _record(row: MeasurementRow, stage: StageRow, run: RunRow, former: bool, began: float | None) -> RecordedEvent:
    event = event_of(row.device, row.labels, row.text or "", row.samples)
    return RecordedEvent(
        node=run.node, sku=run.sku, dag_id=run.dag_id, run_id=run.run_id, stage=stage.stage, verdict=stage.verdict,
        boot_id=str(run.identity.get("boot_id", "")), part=part_of(event, run.identity), seen_at=stage.recorded_at,
        event=event, former=bool(former), during=event.after(began),
    )  # fmt: skip


def part_of(event: DeviceEvent, identity: dict[str, Any]) -> str:
    """The part that it is about: the GPU's serial where known, else its PCI address."""
    serials = identity.get("serials")
    serial = serials.get(event.device) if isinstance(serials, dict) else None
    return str(serial or event.pci or event.device)


def by_boot(records: Iterable[RecordedEvent]) -> dict[str, list[DeviceEvent]]:
    """{boot id: its events, whose ``pci`` names the part}; what several stages report counts once."""
    boots: dict[str, list[DeviceEvent]] = {}
    for record in records:
        events = boots.setdefault(record.boot_id, [])
        known = dataclasses.replace(record.event, pci=record.part)
        if known not in events:
            events.append(known)
    return boots
