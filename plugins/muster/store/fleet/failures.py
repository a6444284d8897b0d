"""The fleet's failures in service: which nodes left it broken, for what, and when they came back."""

from __future__ import annotations

import collections
import datetime
import itertools
from collections.abc import Collection, Sequence

from sqlalchemy import func, select
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


def since(moment: datetime.datetime) -> list[Failure]:
    """Returns the failures of present machines since then, by node and time: moves from service to a broken state."""
    with reading() as session:
        return within(session, moment)


def within(session: Session, moment: datetime.datetime, node: str = "") -> list[Failure]:
    """As ``since``, in the caller's transaction; of ``node`` alone if it is given."""
    moves = (
        select(EventRow)
        .join(NodeRow, NodeRow.name == EventRow.node)
        .where(EventRow.at >= moment, EventRow.id > NodeRow.machine_event, EventRow.from_state != EventRow.to_state)
        .order_by(EventRow.node, EventRow.id)
    )
    moves = moves.where(EventRow.node == node) if node else moves
    found: list[Failure] = []
    for _, events in itertools.groupby(session.scalars(moves), lambda event: event.node):
        left: EventRow | None = None
        for event in events:
            if left is not None and State(event.to_state) in SERVING:
                found.append(_failure(session, left, event))
                left = None
            if State(event.from_state) in SERVING and State(event.to_state) in BROKEN:
                left = event
        if left is not None:
            found.append(_failure(session, left, None))
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


def _failure(session: Session, left: EventRow, back: EventRow | None) -> Failure:
    """What was found from the node's entry into service before it left to its return, and when that was.

    By the numbers of stages: a clock that was wrong meanwhile charges the failure with nothing of another one.
    """
    serving = [str(state) for state in SERVING]
    entry = select(func.max(EventRow.after)).where(EventRow.node == left.node, EventRow.id < left.id)
    entered = session.scalar(entry.where(EventRow.to_state.in_(serving), EventRow.from_state.not_in(serving))) or 0
    query = (
        select(FindingRow.fault_class, FindingRow.device, StageRow.stage)
        .join(StageRow, FindingRow.stage == StageRow.id)
        .where(FindingRow.node == left.node, FindingRow.severity == str(Severity.CRITICAL), StageRow.current)
        .where(StageRow.id > entered)
        .order_by(StageRow.id.desc(), FindingRow.id)
    )
    findings = session.execute(query if back is None else query.where(StageRow.id <= back.after)).all()
    groups = [_group(fault_class, stage) for fault_class, _, stage in findings]
    devices = [device for _, device, _ in findings]
    replaced = back is not None and _replaced(session, left, devices, back)
    group = next((group for group in groups if group != "unknown"), "unknown")
    return Failure(left.node, group, left.at, back.at if back else None, replaced)


def _group(fault_class: str, stage: str) -> str:
    if stage == "integrity" and fault_class == FaultClass.GPU:
        return "corruption"
    return GROUP_OF.get(FaultClass(fault_class), "unknown")


def _replaced(session: Session, left: EventRow, devices: Sequence[str], back: EventRow) -> bool:
    """Whether another part sits in the place of one of these devices since the failure."""
    if not devices:
        return False
    query = select(PartRow.kind, PlacementRow.slot).join(PlacementRow, PlacementRow.part_id == PartRow.id)
    ended = query.where(
        PlacementRow.node == left.node, PlacementRow.until_after >= left.after, PlacementRow.until_after <= back.after
    )
    return any(slot in devices and kind == kind_of(slot) for kind, slot in session.execute(ended))
