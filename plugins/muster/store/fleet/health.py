"""Observations of nodes between tests: once for each check, part, boot and source, with the action that follows.

Sources are kept apart: one that may cause little can neither end a state that the sweep reported nor add to its count.
An observation belongs to one machine and one spell in service (``HealthRow.spell``): once the node is back, repaired
and tested, observations are new, and earlier ones no longer withdraw it.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Select, case, func, or_, select
from sqlalchemy.orm import Session

from muster.errors import IllegalMove, Refusal, UnknownNode
from muster.model.events import Evidence
from muster.model.health import ACTOR, OF_PLACE, Cursor, Observation, Report, Track, cited
from muster.model.nodes import Node
from muster.model.states import SERVING, State
from muster.model.statistics import Urgent
from muster.rules.service import health as rules
from muster.store.database import access
from muster.store.database.batches import batches
from muster.store.database.engine import reading, writing
from muster.store.database.health import COUNT_MAX, HealthRow, SweepRow
from muster.store.database.models import EventRow, MeasurementRow, NodeRow, PartRow, PlacementRow, StageRow
from muster.store.decisions.withdrawals import breaker_now
from muster.store.fleet import bmcs, states
from muster.store.fleet.shares import FULL, OTHERS, Share
from muster.store.fleet.states import READ_AGAIN, TEXT_MAX, Rows
from muster_criteria.device_events.judge import OLDEST
from muster_criteria.health.policy import WITHIN_S_MAX, HealthAction, HealthPolicy
from muster_criteria.health.readings import Reading

LEAVE = [each for each in HealthAction if each.leaves]
RECENT = datetime.timedelta(seconds=WITHIN_S_MAX)
PRESENT = HealthRow.machine == NodeRow.machine
THIS_SPELL = PRESENT & (HealthRow.spell == NodeRow.spell)
"""For a query that joins both tables: rows of the node's present machine and present spell."""


def record(reports: Sequence[Report], policy: HealthPolicy, now: datetime.datetime | None = None) -> list[Observation]:
    """Record reports in one transaction. Returns the observations that are new or now demand a graver action.

    Raises UnknownNode, and records nothing, if one of the nodes is not enrolled.
    """
    names = sorted({each.node for each in reports})
    with writing() as session:
        at = now or access.now()
        nodes = {name: access.node_row(session, name, lock=True) for name in names}
        boots = _boots(session, reports)
        known = _known(session, names, boots.values(), at - RECENT)
        parts = _parts(session, names)
        changed: list[Observation] = []
        for report in reports:
            row = nodes[report.node]
            report = dataclasses.replace(report, boot_id=boots[report.node, report.boot_id])
            share = Share(session, row, report.source, at)
            for seen in report.seen:
                part, rows = seen.part or parts.get((report.node, seen.device), seen.device), known[report.node]
                for each, of in states.meant(seen, part, report.source, rows):
                    if found := _observe(session, row, report, each, of, rows, policy, at, share):
                        changed.append(found)
            if report.cursor is not None:
                _store_cursor(session, report.cursor, row)
                row.contact_at = max(filter(None, (row.contact_at, report.cursor.swept_at)), default=None)
            if report.bmc is not None:
                bmcs.keep(session, report.bmc, row)
        return changed


def _boots(session: Session, reports: Sequence[Report]) -> dict[tuple[str, str], str]:
    """{(node, boot id of a report): boot id}; a report without one gets the boot of the node's last sweep."""
    names = sorted({each.node for each in reports if not each.boot_id})
    swept = {row.node: row.boot_id for row in session.scalars(_sweeps(names))}
    return {(each.node, each.boot_id): each.boot_id or swept.get(each.node, "") for each in reports}


def _known(
    session: Session, names: Collection[str], boots: Collection[str], since: datetime.datetime
) -> dict[str, Rows]:
    """The rows of these boots, the states that are not over, and the events seen since then. The cost does not grow
    with the node's age.
    """
    states = HealthRow.bad.is_not(None) & ~HealthRow.over
    events = HealthRow.bad.is_(None) & (HealthRow.last_seen >= since)
    query = (
        select(HealthRow)
        .join(NodeRow, NodeRow.name == HealthRow.node)
        .where(HealthRow.node.in_(names), THIS_SPELL)
        .where(or_(HealthRow.boot_id.in_(sorted(set(boots))), states, events))
        .order_by(HealthRow.id)
    )
    found: dict[str, Rows] = {name: collections.defaultdict(list) for name in names}
    for row in session.scalars(query):
        found[row.node][row.part, row.check].append(row)
    return found


def _parts(session: Session, names: Collection[str]) -> dict[tuple[str, str], str]:
    query = (
        select(PlacementRow.node, PlacementRow.slot, PartRow.kind, PartRow.serial)
        .join(PartRow, PlacementRow.part_id == PartRow.id)
        .where(PlacementRow.node.in_(names), PlacementRow.until.is_(None))
    )
    return {(node, slot): f"{kind} {serial}" for node, slot, kind, serial in session.execute(query)}


def _observe(
    session: Session, node: NodeRow, report: Report, seen: Reading, part: str, known: Rows, policy: HealthPolicy,
    at: datetime.datetime, share: Share,
) -> Observation | None:  # fmt: skip
    check = seen.check
    rows = [each for each in known.get((part, check), []) if each.source == report.source]
    states.end_silent(rows, at)
    row = states.row_for(rows, report.boot_id, seen)
    track, recent = None, states.recent_of(rows, seen)
    if seen.bad is not None:
        every_s = rules.read_every_s(report.source, policy)
        track = rules.step(_track(row) if row else None, seen.bad, at, policy, report.uptime_s, every_s)
    if row is None:
        if seen.bad is not None and track is None:
            return None  # a good state, or one of a node that is still booting
        if not share.take(known):
            part, check = "node", f"{OTHERS}/{report.source}"
            row = next(iter(_others(session, node, known, check)), None)
            seen, track, recent = Reading(check, value=FULL, count=seen.count), None, []
    fresh = row is None
    if row is None:
        row = HealthRow(
            node=node.name, machine=node.machine, spell=node.spell, part=part, device=seen.device, check=check,
            boot_id=report.boot_id, source=report.source, value="", severity="", rate=None, first_seen=at,
            last_seen=at, count=0, recent=recent, most=str(report.most), action=HealthAction.NOTE, due_at=at,
        )  # fmt: skip
        session.add(row)
        known[part, check].append(row)
    again = seen.bad is None or (track is not None and not fresh and track.flaps > row.flaps)
    _add(row, report, seen, track, at)
    return _decide(session, node, row, policy, at, rate=seen.rate, fresh=fresh, again=again, share=share)


def _others(session: Session, node: NodeRow, known: Rows, check: str) -> list[HealthRow]:
    """The row that counts what has no row of its own (``OTHERS``), whatever the boot."""
    if not known["node", check]:
        query = select(HealthRow).where(HealthRow.node == node.name, HealthRow.machine == node.machine)
        known["node", check] = list(session.scalars(query.where(HealthRow.check == check).limit(1)))
    return known["node", check]


def _add(row: HealthRow, report: Report, seen: Reading, track: Track | None, at: datetime.datetime) -> None:
    row.most, row.value = str(report.most), seen.value[:TEXT_MAX] or row.value
    row.severity = seen.severity or row.severity
    row.rate = max(filter(None, (row.rate, seen.rate)), default=None)
    times = min(seen.count, COUNT_MAX) if track is None else int(track.bad)
    if times:
        row.count = min(row.count + times, COUNT_MAX)
        row.last_seen = at  # even if a clock that was ahead wrote a later time
        row.recent = [list(each) for each in rules.remember(_recent(row), row.last_seen.timestamp(), times)]
    if track is None:
        row.state_at = min(seen.at, at) if seen.at else row.state_at  # a clock ahead must hide no later event
        return
    row.bad, row.state_since, row.state_at = track.bad, track.since, track.at
    row.down_s, row.flaps, row.over = track.down_s, track.flaps, track.over


def _decide(
    session: Session, node: NodeRow, row: HealthRow, policy: HealthPolicy, at: datetime.datetime, *,
    rate: float | None, fresh: bool, again: bool, share: Share,
) -> Observation | None:  # fmt: skip
    """Set the action of the row; returns the observation if it is new or its action became graver, else None.

    ``rate``: of this reading; the row keeps the highest. ``again``: an event, or a state that went bad again. An action
    stays due until the state is over; a reading that demands none does not make it due again.
    """
    before = HealthAction(row.action)
    if row.over:
        row.action, row.acted = HealthAction.NOTE, ""
    if row.over or row.bad is False:
        return None
    session.flush()
    seen = dataclasses.replace(_to_observation(row), rate=rate)
    action = rules.decide(seen, access.to_node(node), policy, HealthAction(row.most))
    again = again and action is not HealthAction.NOTE
    if not fresh and action.rank < before.rank:
        action = before
    row.action = str(action)
    rises = action.rank > before.rank
    if rises or again:
        row.due_at, row.due_after = at, access.last_stage(session, node)
    if rises or (again and row.acted == OF_PLACE):
        row.acted = ""
    if not fresh and not rises:
        return None
    found = _to_observation(row)
    evidence = {"observation": row.id, "check": row.check, "source": row.source, "action": str(action)}
    text = f"observed: {found.sentence}; {action} by policy {policy.cited}"
    share.tell(text, evidence)
    return found


def _recent(row: HealthRow) -> tuple[tuple[float, int], ...]:
    return tuple((float(at), int(times)) for at, times in row.recent or ())


def _track(row: HealthRow) -> Track | None:
    if row.bad is None or row.state_since is None or row.state_at is None:
        return None
    return Track(row.bad, row.state_since, row.state_at, row.down_s, row.flaps, row.over)


def _to_observation(row: HealthRow, spell: int = 0) -> Observation:
    """``spell``: the node's; a state of an earlier one is over."""
    track = _track(row)
    if track is not None and row.spell < spell:
        track = dataclasses.replace(track, over=True)
    return Observation(
        id=row.id, node=row.node, part=row.part, device=row.device, check=row.check, value=row.value,
        first_seen=row.first_seen, last_seen=row.last_seen, count=row.count, boot_id=row.boot_id, source=row.source,
        severity=row.severity, rate=row.rate, action=HealthAction(row.action), track=track,
        most=HealthAction(row.most), acted=row.acted, recent=_recent(row),
    )  # fmt: skip


def of_node(node: str, limit: int | None = 100, *, lasting: bool = False) -> list[Observation]:
    """The observations of the node's machine, last seen first; only lasting ones if ``lasting``. Raises UnknownNode."""
    with reading() as session:
        row = access.node_row(session, node)
        over = HealthRow.bad.is_not(None) & (HealthRow.over | (HealthRow.spell < row.spell))
        query = select(HealthRow).where(HealthRow.node == node, HealthRow.machine == row.machine, *[~over] * lasting)
        query = query.order_by(HealthRow.last_seen.desc(), HealthRow.id.desc()).limit(limit)
        return [_to_observation(each, row.spell) for each in session.scalars(query)]


def of_id(node: str, number: int) -> Observation | None:
    """Returns the observation of the node's present machine with this id, if any. Raises UnknownNode."""
    with reading() as session:
        row, found = access.node_row(session, node), session.get(HealthRow, number)
        return _to_observation(found) if found and (found.node, found.machine) == (node, row.machine) else None


def recorded(since: datetime.datetime, node: str = "") -> list[Observation]:
    """Returns the observations of present machines, or only of ``node``, that were seen since then, by time."""
    query = (
        select(HealthRow)
        .join(NodeRow, NodeRow.name == HealthRow.node)
        .where(PRESENT, HealthRow.last_seen >= since)
        .order_by(HealthRow.last_seen, HealthRow.id)
    )
    with reading() as session:
        return [
            _to_observation(each) for each in session.scalars(query.where(HealthRow.node == node) if node else query)
        ]


def open_in_service(since: datetime.datetime, node: str = "") -> list[Observation]:
    """Returns the observations of this spell that are not over, of nodes in service or only ``node``, by node and time.

    States that were acted on and that no sweep reads again, and events that demand nothing more, count only if seen
    since then. The others stay, so that a node that was busy, or that the circuit breaker holds, leaves service once
    it can. A node in shadow mode never leaves.
    """
    unacted = HealthRow.acted == ""
    leaves = HealthRow.bad.is_(None) & HealthRow.action.in_(LEAVE) & unacted & ~NodeRow.shadow
    standing = (HealthRow.bad & (HealthRow.source.in_(READ_AGAIN) | unacted)) | leaves
    query = (
        select(HealthRow)
        .join(NodeRow, NodeRow.name == HealthRow.node)
        .where(NodeRow.state.in_(SERVING), THIS_SPELL)
        .where(~HealthRow.over, or_(HealthRow.last_seen >= since, standing))
        .order_by(HealthRow.node, HealthRow.first_seen, HealthRow.id)
    )
    with reading() as session:
        found = session.scalars(query.where(HealthRow.node == node) if node else query)
        return [_to_observation(each) for each in found]


def urgent() -> dict[str, Urgent]:
    """{node: the latest observation of its present machine that demands a test}."""
    found: dict[str, Urgent] = {}
    query = (
        select(HealthRow)
        .join(NodeRow, NodeRow.name == HealthRow.node)
        .where(PRESENT, HealthRow.action != HealthAction.NOTE, ~HealthRow.over)
        .order_by(HealthRow.due_at, HealthRow.id)
    )
    with reading() as session:
        for row in session.scalars(query):
            after = max(found[row.node].after if row.node in found else 0, row.due_after)
            found[row.node] = Urgent(f"observed: {_to_observation(row).sentence}", row.due_at, after)
    return found


def judged_until() -> dict[str, datetime.datetime]:
    """{node in service: the time up to which tests judged its kernel log}.

    This is the end of the last stage before it entered service that read the kernel's log, or when that was recorded if
    the node's clock is ahead. Without one, or if the node was swept since, it is when the node entered service.
    """
    entries = select(func.max(EventRow.id)).where(access.ENTERS).group_by(EventRow.node)
    read = select(MeasurementRow.id).where(MeasurementRow.stage == StageRow.id, MeasurementRow.metric == OLDEST)
    before = StageRow.node == NodeRow.name, StageRow.machine == NodeRow.machine, StageRow.id <= EventRow.after
    last = select(StageRow.id).where(*before, read.exists()).order_by(StageRow.id.desc()).limit(1)
    unswept = SweepRow.swept_at.is_(None) | (SweepRow.swept_at < EventRow.at) | (SweepRow.machine != NodeRow.machine)
    query = (
        select(EventRow.node, EventRow.at, StageRow.ended_at, StageRow.recorded_at)
        .join(NodeRow, NodeRow.name == EventRow.node)
        .outerjoin(SweepRow, SweepRow.node == NodeRow.name)
        .outerjoin(StageRow, StageRow.id == case((unswept, last.correlate(NodeRow, EventRow).scalar_subquery())))
        .where(NodeRow.state.in_(SERVING), EventRow.id.in_(entries))
    )
    with reading() as session:
        return {row[0]: min(filter(None, row[2:]), default=row[1]) for row in session.execute(query)}


def cursors(nodes: Iterable[str]) -> dict[str, Cursor]:
    """{node: where its last sweep ended}; an empty cursor for a machine that was never swept."""
    names = list(nodes)
    kept: dict[str, Cursor] = {}
    with reading() as session:
        for some in batches(names):
            for row in session.scalars(_sweeps(some)):
                kept[row.node] = Cursor(row.node, row.boot_id, row.kernel_s, dict(row.counters), row.swept_at)
    return {name: kept.get(name, Cursor(name)) for name in names}


def _sweeps(names: Sequence[str]) -> Select[SweepRow]:
    query = select(SweepRow).join(NodeRow, NodeRow.name == SweepRow.node)
    return query.where(SweepRow.node.in_(names), SweepRow.machine == NodeRow.machine)


def _store_cursor(session: Session, cursor: Cursor, node: NodeRow) -> None:
    row = session.get(SweepRow, cursor.node)
    if row is None:
        row = SweepRow(node=cursor.node)
        session.add(row)
    row.machine, row.boot_id, row.kernel_s = node.machine, cursor.boot_id, cursor.kernel_s
    row.counters, row.swept_at = dict(cursor.counters), cursor.swept_at


def withdraw(observation: Observation, why: str) -> Node:
    """Move the node into quarantine for an observation, unless the circuit breaker prevents it.

    Raises IllegalMove with ``Refusal.SHADOW`` for a node in shadow mode, ``Refusal.BREAKER`` if the breaker is open,
    ``Refusal.LEASED`` while a run holds the node, since its verdict comes; UnknownNode.
    """
    with writing() as session:
        node, row = access.node_row(session, observation.node, lock=True), session.get(HealthRow, observation.id)
        if row is None:
            raise UnknownNode(f"the observation of {observation.node} is gone")
        if State(node.state) not in SERVING:
            raise IllegalMove(f"{node.name} is in {node.state}: it does not serve", Refusal.NO_SUCH_MOVE)
        if access.live_lease(session, node.name) is not None:
            raise IllegalMove(f"{node.name} is tested now: its verdict decides", Refusal.LEASED)
        held = breaker_now(session, simulated=node.simulated, deciding=True)
        if held.open and not node.shadow:
            raise IllegalMove(f"{node.name} stays in service: {held.why}", Refusal.BREAKER)
        evidence = Evidence(observed=cited(row.id), check=row.check, device=row.device, reason=why)
        access.move(session, node, State.QUARANTINE, ACTOR, why, evidence)
        row.acted = "withdrawn"
        return access.to_node(node)


def note_acted(observation: Observation, acted: str) -> None:
    """Note what was done for an observation."""
    with writing() as session:
        row = session.get(HealthRow, observation.id)
        if row is not None:
            row.acted = acted[:TEXT_MAX]


def corrupted(since: datetime.datetime, policy: HealthPolicy) -> collections.Counter[tuple[str, bool]]:
    """Returns {(check, whether simulated): how many observations seen since then say that data was corrupted}."""
    lately = HealthRow.last_seen >= since
    with reading() as session:
        checks = filter(policy.may_corrupt, session.scalars(select(HealthRow.check).where(lately).distinct()))
        query = select(HealthRow, NodeRow.simulated).join(NodeRow, NodeRow.name == HealthRow.node)
        found = session.execute(query.where(lately, HealthRow.check.in_(list(checks)))).all()
        which = (each for each in found if rules.corrupts(_to_observation(each[0]), policy))
        return collections.Counter((row.check, simulated) for row, simulated in which)


def corrupting(node: str) -> Observation | None:
    """Returns the last observation of this spell for which the node was withdrawn at once, None without one."""
    query = (
        select(HealthRow)
        .join(NodeRow, NodeRow.name == HealthRow.node)
        .where(HealthRow.node == node, HealthRow.action == HealthAction.AT_ONCE, HealthRow.acted == "withdrawn")
        .where(THIS_SPELL)
        .order_by(HealthRow.id.desc())
    )
    with reading() as session:
        row = session.scalars(query.limit(1)).first()
        return None if row is None else _to_observation(row)
