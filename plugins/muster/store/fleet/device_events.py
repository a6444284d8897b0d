"""The device events that are recorded for a node, and when a person last repaired it."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from sqlalchemy import func, select

from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import EventRow, MeasurementRow, NodeRow, RunRow, StageRow
from muster_criteria.device_events.judge import EVENTS, event_of
from muster_criteria.device_events.policy import DeviceEvent

REPAIRED = (
    EventRow.from_state.in_([State.REPAIR, State.RMA]),
    EventRow.to_state == State.REGISTERED,
    EventRow.evidence["person"].as_string().is_not(None),
)
"""Conditions on an event: a person had the node repaired. A program's repair is a restart, which may not help."""


def standing(node: str, within: datetime.timedelta) -> dict[str, list[DeviceEvent]]:
    """{boot id: events} of the node's present machine, recorded ``within`` that time and after a person last repaired
    it. ``pci`` names the part; an event that several stages report counts once.
    """
    query = (
        select(MeasurementRow, RunRow.identity)
        .join(StageRow, MeasurementRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(RunRow.node == node, RunRow.machine == NodeRow.machine, StageRow.current)
        .where(MeasurementRow.metric.in_(EVENTS), StageRow.recorded_at >= access.now() - within)
        .order_by(StageRow.recorded_at, MeasurementRow.id)
    )
    boots: dict[str, list[DeviceEvent]] = {}
    with reading() as session:
        repaired = session.scalar(select(func.max(EventRow.after)).where(EventRow.node == node, *REPAIRED)) or 0
        for row, identity in session.execute(query.where(StageRow.origin > repaired)):
            event = event_of(row.device, row.labels, row.text or "", row.samples)
            events = boots.setdefault(str(identity.get("boot_id", "")), [])
            known = dataclasses.replace(event, pci=part_of(event, identity))
            if known not in events:
                events.append(known)
    return boots


def repaired_for(node: str, moment: datetime.datetime | None = None) -> float | None:
    """Seconds from the last repair of the node's machine by a person to ``moment`` (None: now); None without one."""
    with reading() as session:
        until = moment or access.now()
        query = select(func.max(EventRow.at)).join(NodeRow, NodeRow.name == EventRow.node).where(*REPAIRED)
        at = session.scalar(
            query.where(EventRow.node == node, EventRow.at <= until, EventRow.id > NodeRow.machine_event)
        )
    return None if at is None else (until - at).total_seconds()


def part_of(event: DeviceEvent, identity: dict[str, Any]) -> str:
    """The part that the event is about: the GPU's serial where known, else its PCI address."""
    serials = identity.get("serials")
    serial = serials.get(event.device) if isinstance(serials, dict) else None
    return str(serial or event.pci or event.device)
