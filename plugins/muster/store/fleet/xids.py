"""The recorded XIDs of the fleet, for evaluating another XID policy on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from sqlalchemy import select

from muster.model.statistics import RecordedXid
from muster.store.database.engine import reading
from muster.store.database.models import MeasurementRow, NodeRow, RunRow, StageRow
from muster_criteria.xid.judge import EVENT, event_of
from muster_criteria.xid.policy import XidEvent


def recorded(*, node: str = "") -> list[RecordedXid]:
    """All XIDs of current verdicts, oldest first; with ``node``, of its present machine only."""
    query = (
        select(MeasurementRow, StageRow, RunRow, (RunRow.machine != NodeRow.machine).label("former"))
        .join(StageRow, MeasurementRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(MeasurementRow.metric == EVENT, StageRow.current)
        .order_by(StageRow.recorded_at, MeasurementRow.id)
    )
    if node:
        query = query.where(RunRow.node == node, RunRow.machine == NodeRow.machine)
    with reading() as session:
        return [_record(*row) for row in session.execute(query)]


def _record(row: MeasurementRow, stage: StageRow, run: RunRow, former: bool) -> RecordedXid:
    event = event_of(row.device, row.labels, row.text or "", row.samples)
    return RecordedXid(
        node=run.node, sku=run.sku, dag_id=run.dag_id, run_id=run.run_id, stage=stage.stage, verdict=stage.verdict,
        boot_id=str(run.identity.get("boot_id", "")), part=part_of(event, run.identity), seen_at=stage.recorded_at,
        event=event, former=bool(former),
    )  # fmt: skip


def part_of(event: XidEvent, identity: dict[str, Any]) -> str:
    """The part with the error: the GPU's serial where known, else its PCI address."""
    serials = identity.get("serials")
    serial = serials.get(event.device) if isinstance(serials, dict) else None
    return str(serial or event.pci or event.device)


def by_boot(records: Iterable[RecordedXid]) -> dict[str, list[XidEvent]]:
    """{boot id: its events, whose ``pci`` names the part}; what several stages report counts once."""
    boots: dict[str, list[XidEvent]] = {}
    for record in records:
        events = boots.setdefault(record.boot_id, [])
        known = dataclasses.replace(record.event, pci=record.part)
        if known not in events:
            events.append(known)
    return boots
