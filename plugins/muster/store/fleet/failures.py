"""The fleet's failures in service: which nodes left it broken, for what, and when they came back."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import fnmatch
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from muster.model.failures import Failure
from muster.model.states import BROKEN, SERVING, State
from muster.rules.identity import CHASSIS
from muster.store.database import access
from muster.store.database.batches import batches
from muster.store.database.engine import reading
from muster.store.database.models import EventRow, FindingRow, NodeRow, PartRow, PlacementRow, StageRow
from muster_criteria.devices import kind_of
from muster_criteria.model import FaultClass, Severity

GROUP_OF = {
    FaultClass.GPU: "compute", FaultClass.CPU: "compute", FaultClass.HBM: "memory", FaultClass.DIMM: "memory",
    FaultClass.NVLINK: "links", FaultClass.PCIE: "links", FaultClass.NIC: "links", FaultClass.CABLE: "links",
    FaultClass.PSU: "power", FaultClass.COOLING: "cooling",
}  # fmt: skip
"""{fault class: the group of defects in which the planner counts it}; other classes count as unknown."""


def _xids(*codes: int) -> tuple[str, ...]:
    return tuple(f"xid/{code}" for code in codes)


CHECKS_OF = {
    "corruption": ("corrupted_results",),
    "memory": ("row_remap_*", "channel_repair_pending", "retired_pages_pending", "unrepairable_memory", "ecc_*",
               "sram_threshold_exceeded", "edac_*", "kernel/memory-*", "kernel/amdgpu-uncorrectable",
               *_xids(48, 63, 64, 92, 94, 95, 140, 160, 161, 168)),
    "links": ("nvlink_*", "port_down", "all_ports_down", "ib_errors*", "pcie_*", "fabric_*", "imex_*", "peer_drain",
              "service/nvidia-fabricmanager", "kernel/pcie-*", "kernel/network", "sxid/*",
              *_xids(74, 79, 136, *range(144, 151), 155, 167)),
    "power": ("psu_failed", *_xids(54)),
    "cooling": ("fan_failed", "leak", "inlet_hot", "throttled*", "kernel/overheated"),
    "compute": ("gpu_*", "tpc_repair_pending", "recovery_action", "reboot_needed", "machine_checks*", "kernel/gpu-*",
                "kernel/machine-check", "kernel/amdgpu-deferred", "kernel/amdgpu-reset",
                *_xids(46, 62, 109, 110, 119, 120, 143, 154, 156, 158, 159, 169)),
}  # fmt: skip
"""{group: patterns of checks observed between tests}; a driver's and the kernel's errors as in their policies."""
NO_PART = ("node", "pci")
"""Kinds of devices that name no part: a GPU that no longer answers is known by its address alone."""
OF_HOST = (
    FaultClass.CPU, FaultClass.DIMM, FaultClass.DISK, FaultClass.NIC, FaultClass.CABLE, FaultClass.PSU,
    FaultClass.COOLING,
    "machine_checks*", "edac_*", "kernel/machine-check", "kernel/memory-*", "kernel/disk-*", "kernel/network",
)  # fmt: skip
"""Fault classes and patterns of checks that concern no GPU, even where their device names no part."""


def since(moment: datetime.datetime, *, former: bool = False) -> list[Failure]:
    """Returns the failures since then, by node and time: moves from service to a broken state.

    Those of present machines; with ``former``, also of earlier machines with these names. Those say nothing about the
    present machine, but much about how often a place in the fleet fails.
    """
    with reading() as session:
        return within(session, moment, former=former)


def within(session: Session, moment: datetime.datetime, node: str = "", *, former: bool = False) -> list[Failure]:
    """As ``since``, in the caller's transaction; of ``node`` alone if it is given.

    Reads only the moves by which a node leaves or enters service, or is retired: tests in service make many more.
    """
    when = EventRow.id, EventRow.node, EventRow.at, EventRow.after
    columns = (*when, EventRow.from_state, EventRow.to_state, EventRow.evidence)
    moves = (
        select(*columns)
        .join(NodeRow, NodeRow.name == EventRow.node)
        .where(EventRow.at >= moment, or_(access.COMES != access.GOES, EventRow.to_state == State.RETIRED))
        .order_by(EventRow.node, EventRow.id)
    )
    moves = moves if former else moves.where(EventRow.id > NodeRow.machine_event)
    moves = moves.where(EventRow.node == node) if node else moves
    found: list[_Spell] = []
    for _, events in itertools.groupby(session.execute(moves), lambda event: event.node):
        left: Any = None
        for event in events:
            if left is not None and (State(event.to_state) in SERVING or event.to_state == State.RETIRED):
                found.append(_Spell(left, event))
                left = None
            if State(event.from_state) in SERVING and State(event.to_state) in BROKEN:
                left = event
        if left is not None:
            found.append(_Spell(left))
    return _failures(session, found)


def served(until: datetime.datetime, *, former: bool = False) -> dict[str, datetime.datetime]:
    """Returns when each node first entered production, if before ``until``: its present machine or, with ``former``,
    any machine that had its name.
    """
    entered = (
        select(EventRow.node, func.min(EventRow.at))
        .join(NodeRow, NodeRow.name == EventRow.node)
        .where(EventRow.to_state == State.PRODUCTION, EventRow.from_state != EventRow.to_state)
        .where(EventRow.at < until)
        .group_by(EventRow.node)
    )
    entered = entered if former else entered.where(EventRow.id > NodeRow.machine_event)
    with reading() as session:
        return {row[0]: row[1] for row in session.execute(entered)}


@dataclasses.dataclass(frozen=True)
class _Spell:
    """A time out of service: the moves with which it began and ended (None: it lasts)."""

    left: Any
    over: Any = None

    @property
    def back(self) -> Any:
        """The move back into service, None if there is none."""
        return None if self.over is None or self.over.to_state == State.RETIRED else self.over


def _failures(session: Session, spells: Sequence[_Spell]) -> list[Failure]:
    """The failures with what was found from the node's entry into service, before it left, until its return.

    Ordered by the ids of stages, so that a wrong clock does not charge a failure with another's findings. The number of
    queries per batch of nodes does not depend on how often each failed.
    """
    by_node: dict[str, list[_Spell]] = collections.defaultdict(list)
    for spell in spells:
        by_node[spell.left.node].append(spell)
    made: list[Failure] = []
    for some in batches(by_node):
        entries, findings, placed = _entries(session, some), _findings(session, some), _placed(session, some)
        for name in some:
            made += [_failure(each, entries[name], findings[name], placed[name]) for each in by_node[name]]
    return made


def _failure(spell: _Spell, entries: list[Any], findings: list[Any], placed: list[Any]) -> Failure:
    """``entries``, ``findings``, ``placed``: all rows of the node; only those during ``spell`` count."""
    left, back = spell.left, spell.back
    entered = max((each.after for each in entries if each.id < left.id), default=0)
    own = [each for each in findings if each.id > entered and (back is None or each.id <= back.after)]
    groups = [_group(each.fault_class, each.stage) for each in own]
    faults = [(each.device, each.fault_class) for each in own]
    if check := left.evidence.get("check"):
        groups.insert(0, group_seen(check))
        faults.append((left.evidence["device"], check))
    slots = _suspected(faults, {each.slot for each in placed})
    replaced = back is not None and bool(_removed(placed, slots, left.after, back.after))
    group = next((group for group in groups if group != "unknown"), "unknown")
    gone = spell.over.at if spell.over is not None and back is None else None
    return Failure(left.node, group, left.at, back.at if back else None, replaced, gone)


def _suspected(faults: Sequence[tuple[str, str]], known: Collection[str]) -> Collection[str]:
    """The slots of the part that failed: those of ``known`` that the ``faults`` (device, fault class or check) name.

    A part without its own serial, such as a NIC, a power supply or a DIMM, counts as replaced with its board or system,
    not with a GPU. If no fault names a part, as with a crash, any part may have failed.
    """
    if named := {device for device, _ in faults}.intersection(known):
        return named
    anything = all(kind_of(device) in NO_PART and not _matches(what, OF_HOST) for device, what in faults)
    return known if anything else CHASSIS


def _removed(placed: list[Any], slots: Collection[str], first: int, last: int) -> set[int]:
    """The ids of the parts that left one of ``slots`` between these stages and are not in the node after the last one.

    A GPU that moved to another slot, or came back, was not replaced.
    """
    there = {each.part_id for each in placed if each.until_after is None or each.after <= last < each.until_after}
    ended = (each for each in placed if each.until_after is not None and first <= each.until_after <= last)
    return {each.part_id for each in ended if each.slot in slots and each.kind == kind_of(each.slot)} - there


def _by_node(session: Session, query: Select[*tuple[Any, ...]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = collections.defaultdict(list)
    for row in session.execute(query):
        found[row.node].append(row)
    return found


def _entries(session: Session, nodes: Sequence[str]) -> dict[str, list[Any]]:
    query = select(EventRow.node, EventRow.id, EventRow.after)
    return _by_node(session, query.where(EventRow.node.in_(nodes), access.ENTERS))


def _findings(session: Session, nodes: Sequence[str]) -> dict[str, list[Any]]:
    query = (
        select(FindingRow.node, FindingRow.fault_class, FindingRow.device, StageRow.stage, StageRow.id)
        .join(StageRow, FindingRow.stage == StageRow.id)
        .where(FindingRow.node.in_(nodes), FindingRow.severity == Severity.CRITICAL, StageRow.current)
        .order_by(StageRow.id.desc(), FindingRow.id)
    )
    return _by_node(session, query)


def _placed(session: Session, nodes: Sequence[str]) -> dict[str, list[Any]]:
    columns = (PlacementRow.part_id, PlacementRow.slot, PlacementRow.after, PlacementRow.until_after)
    query = select(PlacementRow.node, PartRow.kind, *columns).join(PartRow, PlacementRow.part_id == PartRow.id)
    return _by_node(session, query.where(PlacementRow.node.in_(nodes)))


def _group(fault_class: str, stage: str) -> str:
    if stage == "integrity" and fault_class == FaultClass.GPU:
        return "corruption"
    return GROUP_OF.get(FaultClass(fault_class), "unknown")


def group_seen(check: str) -> str:
    """Returns the group of a check that was observed between tests."""
    return next((group for group, checks in CHECKS_OF.items() if _matches(check, checks)), "unknown")


def _matches(what: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(what, each) for each in patterns)
