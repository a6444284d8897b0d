"""The recorded device events of the fleet, for evaluating another policy on them."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from muster.model.states import State
from muster.model.statistics import RecordedEvent
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import EventRow, MeasurementRow, NodeRow, RunRow, StageRow
from muster_criteria.device_events.judge import BEGAN, EVENTS, event_of
from muster_criteria.device_events.policy import DeviceEvent

REPAIRED = (
    EventRow.from_state.in_([State.REPAIR, State.RMA]),
    EventRow.to_state == State.REGISTERED,
    EventRow.evidence["person"].as_string().is_not(None),
)
"""A person had a node repaired. A program's repair is a restart, and whether restarts help is the question."""


def recorded(*, node: str = "") -> list[RecordedEvent]:
    """All events of current verdicts, oldest first; with ``node``, of its present machine only."""
    with reading() as session:
        return _recorded(session, node, *([RunRow.machine == NodeRow.machine] if node else []))


def standing(node: str, within: datetime.timedelta) -> list[RecordedEvent]:
    """Those of the node's present machine that were recorded ``within`` that time, oldest first, and not before a
    person repaired it.
    """
    with reading() as session:
        repaired = max(_repairs(session, node).get(node, ()), default=0)
        here = RunRow.machine == NodeRow.machine, StageRow.origin > repaired
        return _recorded(session, node, *here, StageRow.recorded_at >= access.now() - within)


def repaired_for(node: str, moment: datetime.datetime | None = None) -> float | None:
    """Seconds from when a person had the node's machine repaired last until then (None: now), None if none did."""
    with reading() as session:
        until = moment or access.now()
        query = select(func.max(EventRow.at)).join(NodeRow, NodeRow.name == EventRow.node).where(*REPAIRED)
        at = session.scalar(
            query.where(EventRow.node == node, EventRow.at <= until, EventRow.id > NodeRow.machine_event)
        )
    return None if at is None else (until - at).total_seconds()


def _recorded(session: Session, node: str, *which: ColumnElement[bool]) -> list[RecordedEvent]:
    query = (
        select(MeasurementRow, StageRow, RunRow, (RunRow.machine != NodeRow.machine).label("former"))
        .join(StageRow, MeasurementRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(MeasurementRow.metric.in_((*EVENTS, BEGAN)), StageRow.current, *which)
        .order_by(StageRow.recorded_at, MeasurementRow.id)
    )
    rows = session.execute(query.where(RunRow.node == node) if node else query).all()
    began = {stage.id: row.value for row, stage, *_ in rows if row.metric == BEGAN and row.value is not None}
    repairs = _repairs(session, node)
    return [
        _record(*row, began.get(row[1].id), repairs.get(row[2].node, ())) for row in rows if row[0].metric in EVENTS
    ]


def _repairs(session: Session, node: str) -> dict[str, list[int]]:
    """{node: the last stage before each time that a person had it repaired}, of ``node`` or of all."""
    repaired = select(EventRow.node, EventRow.after).where(*REPAIRED).order_by(EventRow.after)
    found: dict[str, list[int]] = collections.defaultdict(list)
    for name, after in session.execute(repaired.where(EventRow.node == node) if node else repaired):
        found[name].append(after)
    return found


def _record(
    row: MeasurementRow, stage: StageRow, run: RunRow, former: bool, began: float | None, repairs: Sequence[int]
) -> RecordedEvent:
    event = event_of(row.device, row.labels, row.text or "", row.samples)
    return RecordedEvent(
        node=run.node, sku=run.sku, dag_id=run.dag_id, run_id=run.run_id, stage=stage.stage, verdict=stage.verdict,
        boot_id=str(run.identity.get("boot_id", "")), part=part_of(event, run.identity), seen_at=stage.recorded_at,
        event=event, former=bool(former), during=event.after(began), repairs=bisect.bisect_left(repairs, stage.origin),
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
