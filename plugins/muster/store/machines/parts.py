"""Parts and where they sat: identity follows serials, not names or slots."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from muster.errors import DifferentMachine
from muster.model.parts import Placement
from muster.model.runs import Run
from muster.model.states import SERVING, State
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import EventRow, NodeRow, PartRow, PlacementRow, RunRow
from muster_criteria.devices import kind_of

CHASSIS = ("system", "board")
"""The parts whose serial makes a machine this machine; any other part may be swapped."""

LATELY = datetime.timedelta(days=30)
"""How long a part that was seen in a node counts as there, whatever another node reports; longer than nodes wait
between two tests. A node that serves has its parts whatever the time, and one that is retired has none."""

_FILLERS = re.compile(
    r"|0+|1234567890?|none|null|n/?a|unknown|default string|not (specified|available|applicable|settable)"
    r"|to be filled by o\.?e\.?m\.?|system serial number|(base ?board )?serial number|chassis serial number",
    re.IGNORECASE,
)
"""Fillers that firmware reports instead of a serial."""


def history(serial: str) -> list[Placement]:
    """Every place the part with this serial sat in, oldest first."""
    return _placements(serial=serial)


def of_node(node: str) -> list[Placement]:
    """Every part that ever sat in the node, by slot and time."""
    return sorted(_placements(node=node), key=lambda each: (each.slot, each.since))


def runs_of(serial: str) -> list[Run]:
    """Every run in which the part with this serial was tested, on whatever node, latest first."""
    ids = (
        select(RunRow.id)
        .join(PlacementRow, PlacementRow.node == RunRow.node)
        .join(PartRow, PlacementRow.part_id == PartRow.id)
        .where(
            PartRow.serial == serial,
            # A part is first seen in the middle of a run, which is its run all the same.
            or_(RunRow.ended_at.is_(None), RunRow.ended_at >= PlacementRow.since),
            or_(PlacementRow.until.is_(None), RunRow.started_at < PlacementRow.until),
        )
    )
    with reading() as session:
        return [
            access.to_run(row)
            for row in session.scalars(select(RunRow).where(RunRow.id.in_(ids)).order_by(RunRow.id.desc()))
        ]


def real_serials(reported: Mapping[str, str | None]) -> dict[str, str]:
    """{slot: serial} as firmware reports them, without fillers."""
    stripped = {slot: (serial or "").strip() for slot, serial in reported.items()}
    return {slot: serial for slot, serial in stripped.items() if not _FILLERS.fullmatch(serial)}


def clear_places(session: Session, node: str) -> None:
    """Note that no part sits in the node any more."""
    open_ones = select(PlacementRow).where(PlacementRow.node == node, PlacementRow.until.is_(None))
    for row in session.scalars(open_ones):
        row.until = access.now()
    session.flush()


def place(session: Session, node: str, serials: Mapping[str, str]) -> list[str]:
    """Note which parts sit in ``node`` now, {slot: serial}; returns a sentence for each part that was swapped or moved.

    A slot that is not reported keeps its part, and so does one whose reported part was seen in another node lately:
    both nodes' histories get a remark, once. Raises DifferentMachine if the chassis has another serial than before.
    """
    serials = real_serials(serials)
    known = current_serials(session, node)
    for slot in CHASSIS:
        if slot in known and serials.get(slot, known[slot]) != known[slot]:
            raise DifferentMachine(
                f"{node} reports the {slot} serial {serials[slot]}, but is enrolled with {known[slot]}: "
                f"this is a different machine; give it a name of its own, or `muster node replace {node} --reason …`"
            )
    contested = elsewhere(session, node, serials)
    for slot, place_ in contested.items():
        _remark(session, node, slot, place_)
    return [
        sentence
        for slot, serial in sorted(serials.items())
        if slot not in contested
        for sentence in _place_one(session, node, slot, serial, known.get(slot))
    ]


def move_part(session: Session, node: str, slot: str, serial: str) -> list[str]:
    """Note that the part sits there now, whatever is known of it; returns a sentence for each change."""
    return _place_one(session, node, slot, serial, current_serials(session, node).get(slot))


def elsewhere(session: Session, node: str, serials: Mapping[str, str]) -> dict[str, Placement]:
    """{slot: where the part is that ``node`` reports there} for each that another node has, or had lately."""
    seen = access.now() - LATELY
    query = select(PartRow, PlacementRow, NodeRow.state).join(PlacementRow, PlacementRow.part_id == PartRow.id)
    query = query.join(NodeRow, PlacementRow.node == NodeRow.name)
    query = query.where(
        PartRow.serial.in_(set(serials.values())), PlacementRow.until.is_(None), PlacementRow.node != node
    )
    found = {}
    for part, row, state in session.execute(query):
        if State(state) is State.RETIRED or (row.seen_at < seen and State(state) not in SERVING):
            continue
        for slot, serial in serials.items():
            if (kind_of(slot), serial) == (part.kind, part.serial):
                found[slot] = Placement(part.kind, serial, row.node, row.slot, row.since, None)
    return found


def _remark(session: Session, node: str, slot: str, sits: Placement) -> None:
    """Add the contradiction to both nodes' histories, unless it is there."""
    text = f"{slot} of {node} reports the serial {sits.serial} of {sits.slot} of {sits.node}: nothing was moved"
    for name in (node, sits.node):
        if session.scalar(select(EventRow.id).where(EventRow.node == name, EventRow.reason == text).limit(1)) is None:
            state = State(access.node_row(session, name).state)
            access.write_event(session, name, state, state, "muster", text, {"serial_elsewhere": sits.serial})


def current_serials(session: Session, node: str) -> dict[str, str]:
    """{slot: serial} of the parts that sit in the node."""
    query = (
        select(PlacementRow.slot, PartRow.serial)
        .join(PartRow)
        .where(PlacementRow.node == node, PlacementRow.until.is_(None))
    )
    return {row.slot: row.serial for row in session.execute(query)}


def serials_at(session: Session, node: str, moment: datetime.datetime) -> dict[str, str]:
    """{slot: serial} of the parts that sat in the node at that moment."""
    query = (
        select(PlacementRow.slot, PartRow.serial)
        .join(PartRow)
        .where(PlacementRow.node == node, PlacementRow.since <= moment)
    )
    query = query.where(or_(PlacementRow.until.is_(None), PlacementRow.until > moment)).order_by(PlacementRow.id)
    return {row.slot: row.serial for row in session.execute(query)}


def sits_now(session: Session, kind: str, serial: str) -> tuple[str, str] | None:
    """(node, slot) where that part sits; None where it sits in no node, or was never seen."""
    query = select(PlacementRow.node, PlacementRow.slot).join(PartRow)
    query = query.where(PartRow.kind == kind, PartRow.serial == serial, PlacementRow.until.is_(None))
    found = session.execute(query).first()
    return (found.node, found.slot) if found else None


def _place_one(session: Session, node: str, slot: str, serial: str, previous: str | None) -> list[str]:
    moment = access.now()
    kind = kind_of(slot)
    part = session.scalar(select(PartRow).where(PartRow.kind == kind, PartRow.serial == serial))
    if part is None:
        part = PartRow(kind=kind, serial=serial, first_seen=moment)
        session.add(part)
        session.flush()
    where = session.scalar(select(PlacementRow).where(PlacementRow.part_id == part.id, PlacementRow.until.is_(None)))
    if where is not None and (where.node, where.slot) == (node, slot):
        where.seen_at = moment
        return []
    sentences = []
    if where is not None:
        where.until = moment
        sentences.append(f"{serial} moved from {where.slot} of {where.node} to {slot} of {node}")
    if previous is not None:
        sitting = session.scalar(
            select(PlacementRow).where(
                PlacementRow.node == node, PlacementRow.slot == slot, PlacementRow.until.is_(None)
            )
        )
        if sitting is not None:
            sitting.until = moment
        sentences.append(f"{slot} of {node} is now {serial}, was {previous}")
    session.flush()
    session.add(PlacementRow(part_id=part.id, node=node, slot=slot, since=moment, seen_at=moment))
    session.flush()
    return sentences


def _placements(*, serial: str = "", node: str = "") -> list[Placement]:
    query = select(PlacementRow, PartRow).join(PartRow).order_by(PlacementRow.id)
    query = query.where(PartRow.serial == serial) if serial else query.where(PlacementRow.node == node)
    with reading() as session:
        return [
            Placement(part.kind, part.serial, row.node, row.slot, row.since, row.until)
            for row, part in session.execute(query)
        ]
