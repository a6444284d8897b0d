"""The fleet's failures in service: which nodes left it broken, for what, and when they came back."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Collection, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.model.failures import Failure
from muster.model.states import BROKEN, SERVING, State
from muster.store.database.engine import reading
from muster.store.database.models import EventRow, FindingRow, NodeRow, PartRow, PlacementRow, RunRow, StageRow
from muster_criteria.devices import kind_of
from muster_criteria.model import FaultClass, Severity, Verdict

GROUP_OF = {
    FaultClass.GPU: "compute", FaultClass.CPU: "compute", FaultClass.HBM: "memory", FaultClass.DIMM: "memory",
    FaultClass.NVLINK: "links", FaultClass.PCIE: "links", FaultClass.NIC: "links", FaultClass.CABLE: "links",
    FaultClass.PSU: "power", FaultClass.COOLING: "cooling",
}  # fmt: skip
"""The group of defects in which the planner counts a finding; what is missing is counted as unknown."""
LATELY = datetime.timedelta(days=1)
"""A finding so long before a node left service is the reason that it left."""


def since(moment: datetime.datetime) -> list[Failure]:
    """Returns the failures of present machines since then, by node and time: moves from service to a broken state."""
    with reading() as session:
        return within(session, moment)


def within(session: Session, moment: datetime.datetime, node: str = "") -> list[Failure]:
    """As ``since``, in the caller's transaction; of ``node`` alone if it is given."""
    moves = (
        select(EventRow.node, EventRow.at, EventRow.from_state, EventRow.to_state)
        .join(NodeRow, NodeRow.name == EventRow.node)
        .where(EventRow.at >= moment, EventRow.id > NodeRow.machine_event, EventRow.from_state != EventRow.to_state)
        .order_by(EventRow.node, EventRow.id)
    )
    moves = moves.where(EventRow.node == node) if node else moves
    found: list[Failure] = []
    left: tuple[str, datetime.datetime] | None = None
    for name, at, before, after in session.execute(moves):
        if left is not None and (left[0] != name or State(after) in SERVING):
            found.append(_failure(session, *left, at if left[0] == name else None))
            left = None
        if State(before) in SERVING and State(after) in BROKEN:
            left = name, at
    if left is not None:
        found.append(_failure(session, *left, None))
    return found


def caught(since: datetime.datetime, until: datetime.datetime, nodes: Collection[str]) -> dict[tuple[str, str], int]:
    """Returns {(group, stage): faults of these nodes' present machines that the stage found then}, one a run."""
    query = (
        select(FindingRow.node, FindingRow.fault_class, StageRow.stage, RunRow.id)
        .join(StageRow, FindingRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(StageRow.current, StageRow.verdict == str(Verdict.FAIL), FindingRow.severity == str(Severity.CRITICAL))
        .where(StageRow.recorded_at >= since, StageRow.recorded_at < until, RunRow.machine == NodeRow.machine)
    )
    with reading() as session:
        once = {
            (_group(fault_class, stage), stage, run)
            for node, fault_class, stage, run in session.execute(query)
            if node in nodes
        }
    return dict(collections.Counter((group, stage) for group, stage, _ in once))


def _failure(session: Session, node: str, at: datetime.datetime, back: datetime.datetime | None) -> Failure:
    findings = session.execute(
        select(FindingRow.fault_class, FindingRow.device, StageRow.stage)
        .join(StageRow, FindingRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(FindingRow.node == node, FindingRow.severity == str(Severity.CRITICAL), StageRow.current)
        .where(RunRow.started_at <= at, StageRow.recorded_at >= at - LATELY, StageRow.recorded_at <= at + LATELY)
        .order_by(StageRow.recorded_at.desc(), FindingRow.id)
    ).all()
    groups = [_group(fault_class, stage) for fault_class, _, stage in findings]
    devices = [device for _, device, _ in findings]
    replaced = back is not None and _replaced(session, node, devices, at, back)
    return Failure(node, next((group for group in groups if group != "unknown"), "unknown"), at, back, replaced)


def _group(fault_class: str, stage: str) -> str:
    if stage == "integrity" and fault_class == FaultClass.GPU:
        return "corruption"
    return GROUP_OF.get(FaultClass(fault_class), "unknown")


def _replaced(
    session: Session, node: str, devices: Sequence[str], at: datetime.datetime, back: datetime.datetime
) -> bool:
    """Whether another part sits in the place of one of these devices since the failure."""
    if not devices:
        return False
    query = select(PartRow.kind, PlacementRow.slot).join(PlacementRow, PlacementRow.part_id == PartRow.id)
    ended = query.where(PlacementRow.node == node, PlacementRow.until >= at, PlacementRow.until <= back)
    return any(slot in devices and kind == kind_of(slot) for kind, slot in session.execute(ended))
