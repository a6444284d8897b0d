"""Parts and where they sat: identity follows serials, not names or slots."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, or_, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from muster.errors import DifferentMachine
from muster.model.parts import Placement
from muster.model.runs import Run
from muster.model.states import SERVING, State
from muster.rules.identity import BOARD, CHASSIS, SYSTEM, another_machine, as_known, in_one_slot, real_serials
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.health import ENDED, HealthRow
from muster.store.database.models import EventRow, NodeRow, PartRow, PlacementRow, RunRow, StageRow
from muster.store.database.repairs import IncidentRow
from muster_criteria.context.waivers import subject_of
from muster_criteria.devices import kind_of

LATELY = datetime.timedelta(days=30)
"""How long a part counts as in a node after it was seen there, whatever another node reports; longer than nodes wait
between two tests. A serving node keeps its parts for any time, and a retired one has none."""

PLACED_MAX = 2000
"""How many parts reports may put into one machine in its life: twenty in each of a hundred slots."""

REMARKS_MAX = 100
"""How many contradictions to other nodes' parts are remarked for one machine in its life."""

TOLD_MAX = 20
"""How many swapped parts of one report are listed one by one."""


def history(serial: str) -> list[Placement]:
    """Every place where the part with this serial, or each GPU on the board with it, sat, oldest first."""
    query = select(PlacementRow, PartRow).join(PartRow).where(_with_serial(serial))
    return _placements(query.order_by(PlacementRow.id))


def of_node(node: str, limit: int | None = None) -> list[Placement]:
    """The parts that sit in the node, and the last that sat there, ``limit`` in all; by slot, former parts first."""
    query = select(PlacementRow, PartRow).join(PartRow).where(PlacementRow.node == node)
    query = query.order_by(PlacementRow.until.is_not(None), PlacementRow.id.desc()).limit(limit)
    found = list(reversed(_placements(query)))
    return sorted(sorted(found, key=lambda each: each.until is None), key=lambda each: each.slot)


def system_serial(node: str) -> str:
    """The serial of the node's machine, by which its BMC is recognised; "" if the records have none."""
    with reading() as session:
        return current_serials(session, node).get(SYSTEM, "")


def runs_of(serial: str) -> list[Run]:
    """Every run, on any node, that tested the part with this serial or a GPU on the board with it, latest first."""
    ids = (
        select(StageRow.run)
        .join(PlacementRow, PlacementRow.node == StageRow.node)
        .join(PartRow, PlacementRow.part_id == PartRow.id)
        .where(_with_serial(serial), tested_in(StageRow.origin))
    )
    with reading() as session:
        return [
            access.to_run(row)
            for row in session.scalars(select(RunRow).where(RunRow.id.in_(ids)).order_by(RunRow.id.desc()))
        ]


def _with_serial(serial: str) -> ColumnElement[bool]:
    """Parts with this serial; GPUs that share their board's serial have it before a "/"."""
    return or_(PartRow.serial == serial, PartRow.serial.startswith(f"{serial}/", autoescape=True))


def identity_as_known(node: str, identity: Mapping[str, Any]) -> dict[str, Any]:
    """A result's identity, with the ``serials`` by which the parts of ``node`` are known."""
    serials = identity.get("serials")
    if not isinstance(serials, Mapping):
        return dict(identity)
    with reading() as session:
        return {**identity, "serials": as_known(serials, current_serials(session, node))}


def clear_places(session: Session, node: str) -> None:
    """Note that no part sits in the node any more."""
    open_ones = select(PlacementRow).where(PlacementRow.node == node, PlacementRow.until.is_(None))
    last = access.last_stage(session, access.node_row(session, node))
    for row in session.scalars(open_ones):
        row.until, row.until_after = access.now(), last
    session.flush()


def place(session: Session, node: str, serials: Mapping[str, str]) -> list[str]:
    """Note which parts sit in ``node`` now, {slot: serial}; returns a sentence for each part that was swapped or moved,
    the first ``TOLD_MAX`` and how many more.

    A slot that is not reported keeps its part, and so does one whose reported part was lately seen in another node:
    both nodes' histories get a remark, once. The serial of a chassis that several machines share is ignored
    (``without_chassis``). A part that several slots report stays where it is. After ``PLACED_MAX`` parts in a machine's
    life its reports place no more: its history says so once. Raises DifferentMachine if the machine is another one
    (``another_machine``).
    """
    row = access.node_row(session, node)
    known = current_serials(session, node)
    serials = as_known(real_serials(serials), known)
    if why := another_machine(node, serials, known):
        raise DifferentMachine(why)
    serials = without_chassis(session, node, in_one_slot(serials, known))
    contested = elsewhere(session, node, serials)
    for slot, place_ in contested.items():
        _remark(session, row, slot, place_)
    there = _seen_again(session, node, serials, known)
    sentences: list[str] = []
    for slot, serial in sorted(serials.items()):
        if slot in contested or slot in there:
            continue
        if known.get(slot) != serial:
            if row.placed >= PLACED_MAX:
                _tell_once(session, row, MANY_PARTS)
                continue
            row.placed += 1
        sentences += _place_one(session, node, slot, serial, known.get(slot))
    more = [f"{len(sentences) - TOLD_MAX} more of {node}'s parts were swapped or moved"]
    return sentences if len(sentences) <= TOLD_MAX else sentences[:TOLD_MAX] + more


def _seen_again(session: Session, node: str, serials: Mapping[str, str], known: Mapping[str, str]) -> set[str]:
    """Note that parts are still where they are ``known``, in one statement; returns their slots."""
    there = {slot for slot, serial in serials.items() if known.get(slot) == serial}
    if there:
        here = PlacementRow.node == node, PlacementRow.until.is_(None), PlacementRow.slot.in_(sorted(there))
        session.execute(update(PlacementRow).where(*here).values(seen_at=access.now()))
    return there


MANY_PARTS = (
    f"it has reported {PLACED_MAX} parts, more than a machine has in its life: which parts sit in it is recorded no "
    "more, and nothing found on them is charged to a part; look what it reports, then `muster node replace NODE "
    "--serial SLOT=SERIAL --reason …` gives the name to it as a new machine"
)
MANY_REMARKS = (
    f"it has reported parts of other nodes {REMARKS_MAX} times: further contradictions are shown in verdicts alone; "
    "look what it reports"
)


def _tell_once(session: Session, node: NodeRow, text: str) -> None:
    since = select(EventRow.id).where(EventRow.node == node.name, EventRow.id > node.machine_event)
    if session.scalar(since.where(EventRow.actor == "muster", EventRow.reason == text).limit(1)) is None:
        access.remark(session, node, "muster", text)


def move_part(session: Session, node: str, slot: str, serial: str) -> list[str]:
    """Note that the part sits there now, wherever it was recorded before; returns a sentence for each change."""
    return _place_one(session, node, slot, serial, current_serials(session, node).get(slot))


def without_chassis(session: Session, node: str, serials: Mapping[str, str]) -> dict[str, str]:
    """The serials, without a system serial that another node with another main board also has.

    That is the serial of the chassis in which both sit, as in a server of two nodes, and identifies no machine.
    """
    if not {*CHASSIS} <= serials.keys():
        return dict(serials)
    # Of all placements that did not end, however old: a machine on the shelf keeps its serial.
    sits = select(PlacementRow.node).join(PartRow, PlacementRow.part_id == PartRow.id)
    sits = sits.where(PartRow.kind == kind_of(SYSTEM), PartRow.serial == serials[SYSTEM])
    others = session.scalars(sits.where(PlacementRow.until.is_(None), PlacementRow.node != node))
    boards = {current_serials(session, each).get(BOARD, serials[BOARD]) for each in others}
    shared = {SYSTEM} if boards - {serials[BOARD]} else set()
    return {slot: serial for slot, serial in serials.items() if slot not in shared}


def elsewhere(session: Session, node: str, serials: Mapping[str, str]) -> dict[str, Placement]:
    """{slot: where the part that ``node`` reports there is}, for each part that another node has, or had lately."""
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


def _remark(session: Session, node: NodeRow, slot: str, sits: Placement) -> None:
    """Add the contradiction to both nodes' histories, unless it is there already or there were too many."""
    text = f"{slot} of {node.name} reports the serial {sits.serial} of {sits.slot} of {sits.node}: nothing was moved"
    if node.remarked >= REMARKS_MAX:
        _tell_once(session, node, MANY_REMARKS)
        return
    for name in (node.name, sits.node):
        if session.scalar(select(EventRow.id).where(EventRow.node == name, EventRow.reason == text).limit(1)) is None:
            access.remark(session, access.node_row(session, name), "muster", text, {"serial_elsewhere": sits.serial})
            node.remarked += name == node.name


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


def came_at(session: Session, node: str, part: str) -> datetime.datetime | None:
    """When that part (as ``subject_of`` names it) last came into a slot of the node; None if it never sat there."""
    query = select(PlacementRow.slot, PartRow.serial, PlacementRow.since).join(PartRow).where(PlacementRow.node == node)
    rows = session.execute(query.order_by(PlacementRow.id.desc()))
    return next((row.since for row in rows if subject_of(row.slot, {row.slot: row.serial}) == part), None)


def serials_of_stage(session: Session, node: str, stage: int) -> dict[str, str]:
    """{slot: serial} of the parts that sat in the node when its stage ``stage`` (``StageRow.origin``) was recorded."""
    query = select(PlacementRow.slot, PartRow.serial).join(PartRow).where(PlacementRow.node == node)
    query = query.where(tested_in(stage)).order_by(PlacementRow.id)
    return {row.slot: row.serial for row in session.execute(query)}


def tested_in(stage: int | ColumnElement[int] | InstrumentedAttribute[int]) -> ColumnElement[bool]:
    """Whether a placement's part was in a stage of its node (``StageRow.origin``), whatever the clocks say."""
    ended = or_(PlacementRow.until_after.is_(None), PlacementRow.until_after >= stage)
    return (PlacementRow.after < stage) & ended


def sits_now(session: Session, kind: str, serial: str) -> tuple[str, str] | None:
    """(node, slot) where that part sits; None where it sits in no node, or was never seen."""
    query = select(PlacementRow.node, PlacementRow.slot).join(PartRow)
    query = query.where(PartRow.kind == kind, PartRow.serial == serial, PlacementRow.until.is_(None))
    found = session.execute(query).first()
    return (found.node, found.slot) if found else None


def _place_one(session: Session, node: str, slot: str, serial: str, previous: str | None) -> list[str]:
    moment = access.now()
    kind = kind_of(slot)
    row = access.node_row(session, node)
    part = session.scalar(select(PartRow).where(PartRow.kind == kind, PartRow.serial == serial))
    new = part is None
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
        _take_out(session, where, part, moment)
        sentences.append(f"{serial} moved from {where.slot} of {where.node} to {slot} of {node}")
    last = access.last_stage(session, row)
    if previous is not None:
        here = PlacementRow.node == node, PlacementRow.slot == slot, PlacementRow.until.is_(None)
        sitting = session.execute(select(PlacementRow, PartRow).join(PartRow).where(*here)).first()
        if sitting is not None:
            _take_out(session, *sitting, moment)
        sentences.append(f"{slot} of {node} is now {serial}, was {previous}")
    session.flush()
    session.add(PlacementRow(part_id=part.id, node=node, slot=slot, since=moment, seen_at=moment, after=last))
    session.flush()
    if not new:
        _follow(session, row, slot, subject_of(slot, {slot: serial}), last)
    return sentences


_PLACE = tuple_(IncidentRow.node, IncidentRow.machine, IncidentRow.fault_class, IncidentRow.device, IncidentRow.part)
"""At most one incident with the same values is open."""


def _follow(session: Session, node: NodeRow, slot: str, part: str, last: int) -> None:
    """Move open incidents with their part: the tests of the machine where it sits now have to prove its repair."""
    another = or_(IncidentRow.node != node.name, IncidentRow.machine != node.machine)
    query = select(IncidentRow).where(IncidentRow.part == part, IncidentRow.closed_at.is_(None), another)
    for found in session.scalars(query.order_by(IncidentRow.id)).all():
        place = (node.name, node.machine, found.fault_class, slot, part)
        same = select(IncidentRow.id).where(IncidentRow.closed_at.is_(None), _PLACE.in_([place]))
        text = f"incident {found.id} goes with {part} from {found.node} to {slot} of {node.name}"
        if (there := session.scalar(same)) is not None:  # it had two, of two slots
            found.closed_at = access.now()
            text = f"incident {found.id} is closed: with {part} in {slot} of {node.name} it is incident {there}"
        for name in dict.fromkeys((found.node, node.name)):
            access.remark(session, access.node_row(session, name), "muster", text, {"incident": found.id})
        found.node, found.machine, found.simulated, found.device = node.name, node.machine, node.simulated, slot
        found.after, found.asks, found.waits = max(found.after, last), "", ""
        session.flush()


def _placements(query: Select[PlacementRow, PartRow]) -> list[Placement]:
    with reading() as session:
        return [
            Placement(part.kind, part.serial, row.node, row.slot, row.since, row.until)
            for row, part in session.execute(query)
        ]


def _take_out(session: Session, row: PlacementRow, part: PartRow, moment: datetime.datetime) -> None:
    """Note that the part no longer sits there. Its states there end, since no reading of the node will show them."""
    row.until, row.until_after = moment, access.last_stage(session, access.node_row(session, row.node))
    states = HealthRow.node == row.node, HealthRow.part == f"{part.kind} {part.serial}", HealthRow.bad.is_not(None)
    session.execute(update(HealthRow).where(*states).values(**ENDED))
