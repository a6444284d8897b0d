"""What happened to nodes lately that makes a hidden defect likelier: XIDs, repairs, failed neighbours."""

from __future__ import annotations

import collections
import datetime
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from muster.lifecycle.selection import Signs
from muster.lifecycle.transitions import State
from muster.records.database.engine import reading
from muster.records.database.models import Event, MeasurementRow, Node, Run, StageRecord
from muster_criteria.model import Verdict
from muster_criteria.xid.judge import EVENT


def signs(since: datetime.datetime) -> dict[str, Signs]:
    """{node: what happened to it since then}, without nodes to which nothing did. Each XID on each GPU counts once."""
    xids = (
        select(Run.node, func.count(MeasurementRow.id))
        .join(StageRecord, MeasurementRow.stage == StageRecord.id)
        .join(Run, StageRecord.run == Run.id)
        .where(MeasurementRow.metric == EVENT, StageRecord.current, StageRecord.recorded_at >= since)
        .group_by(Run.node)
    )
    repairs = (
        select(Event.node, func.count(Event.id))
        .where(Event.at >= since, Event.to_state == str(State.REPAIR), Event.from_state != Event.to_state)
        .group_by(Event.node)
    )
    failed = (
        select(Node.name, Node.rack)
        .join(Run, Run.node == Node.name)
        .where(Run.verdict == str(Verdict.FAIL), Run.started_at >= since, Node.rack != "")
        .distinct()
    )
    with reading() as session:
        seen, repaired = _pairs(session, xids), _pairs(session, repairs)
        racks = _pairs(session, failed)
        sits = _pairs(session, select(Node.name, Node.rack).where(Node.rack.in_(racks.values())))
    by_rack = collections.Counter(racks.values())
    beside = {name: by_rack[rack] - (name in racks) for name, rack in sits.items()}
    return {
        name: Signs(seen.get(name, 0), repaired.get(name, 0), beside.get(name, 0))
        for name in {*seen, *repaired, *(name for name, count in beside.items() if count)}
    }


def _pairs(session: Session, query: Select[str, Any]) -> dict[str, Any]:
    return {row[0]: row[1] for row in session.execute(query)}
