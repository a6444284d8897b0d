"""Waivers: given, listed, revoked, and which of them hold for a machine."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from muster.errors import BadDay, BadWaiver, UnknownFinding
from muster.rules.lifecycle import waivers as rules
from muster.rules.lifecycle.decisions import check_decision
from muster.store.database import access
from muster.store.database.decisions import WaiverRow
from muster.store.database.digests import SuspectRow
from muster.store.database.engine import reading, writing
from muster.store.database.models import FindingRow, NodeRow, RunRow, StageRow
from muster.store.decisions.current import current_verdicts
from muster.store.machines import contested
from muster.store.machines.parts import current_serials, serials_at, serials_of_stage, sits_now
from muster_criteria.context import waivers
from muster_criteria.context.waivers import Machine, Waiver
from muster_criteria.model import Extent, Finding, Severity

if TYPE_CHECKING:
    from muster_criteria.measured import StageResult


def end_of(day: str) -> datetime.datetime:
    """The end (UTC) of a decision whose last day is ``day`` (YYYY-MM-DD). Raises BadDay if that is no date."""
    try:
        last = datetime.date.fromisoformat(day.strip())
        return datetime.datetime.combine(last, datetime.time(), datetime.UTC) + datetime.timedelta(days=1)
    except (ValueError, OverflowError):  # also for 9999-12-31, which has no next day
        raise BadDay(f"{day!r} is not a date: name the last day as 2026-12-31") from None


def give(finding_id: str, until: datetime.datetime, person: str, reason: str) -> Waiver:
    """Waive a finding until a moment: from the next test on, it alone does not fail its stage.

    The waiver follows the part, and covers the finding to the severity and extent that the current verdicts show.
    Recorded verdicts stay unchanged. A hold for what is now waived ends, as if the waiver had existed before.
    Raises UnknownFinding, NoPerson without a named person and a reason, and BadWaiver if ``until`` is past or the part
    or machine with the finding is no longer there.
    """
    check_decision(person, reason, f"{finding_id} is not waived")
    moment = access.now()
    if until <= moment:
        last = (until - datetime.timedelta.resolution).date()
        raise BadWaiver(f"a waiver until {last} would be over already: give a later date")
    with writing() as session:
        query = (
            select(FindingRow, RunRow.machine, StageRow.origin)
            .join(StageRow, FindingRow.stage == StageRow.id)
            .join(RunRow, StageRow.run == RunRow.id)
            .where(FindingRow.finding_id == finding_id)
            .order_by(FindingRow.id.desc())
        )
        latest = session.execute(query.limit(1)).first()
        if latest is None:
            raise UnknownFinding(f"no finding {finding_id!r} is recorded; `muster runs show` and reports give ids")
        found, machine, stage = latest
        name, device, subject = _where_now(session, found, machine, stage)
        # The chassis of the place may have another name now: lock all nodes that are rechecked, in one order.
        access.lock_nodes(session, machines_of(session, WaiverRow(node=name, subject=subject)))
        node = access.node_row(session, name)
        known = _current(session, found)
        row = WaiverRow(
            node=name, machine=node.machine, rule=found.rule, metric=found.metric, device=device, labels=found.labels,
            severity=min((each.severity for each in known), key=lambda name: Severity(name).rank),
            observed="; ".join(dict.fromkeys(each.observed for each in known)),
            extents=[each.extent for each in known if each.extent], finding_id=finding_id, subject=subject,
            reason=reason.strip(), person=person, created_at=moment, until=until,
        )  # fmt: skip
        session.add(row)
        session.flush()
        recheck_machines(session, row, access.LESS)
        given = to_waiver(row)
        evidence = {"waiver": row.id, "finding": finding_id, "person": person}
        access.remark(session, node, person, f"waived {finding_id} {given}", evidence)
        return given


def _current(session: Session, found: FindingRow) -> list[FindingRow]:
    """The finding as the node's current verdicts have it, or else as it was last found."""
    stages = [stage for stage, _ in current_verdicts(session, access.node_row(session, found.node))]
    same = select(FindingRow).where(FindingRow.finding_id == found.finding_id, FindingRow.stage.in_(stages))
    return list(session.scalars(same.order_by(FindingRow.id))) or [found]


def _where_now(session: Session, found: FindingRow, machine: int, stage: int) -> tuple[str, str, str]:
    """(node, device, subject) where the finding applies now. Raises BadWaiver if its part or machine is gone."""
    # A part whose serial became known later is taken for the one that sat there.
    serials = {**current_serials(session, found.node), **serials_of_stage(session, found.node, stage)}
    subject = waivers.subject_of(found.device, serials)
    if found.device in serials:
        kind, _, serial = subject.partition(" ")
        place = sits_now(session, kind, serial)
        if place is None:
            raise BadWaiver(f"{found.finding_id} was found on {subject}, which sits in no node now: nothing to waive")
        return (*place, subject)
    if machine != access.node_row(session, found.node).machine:
        was = f"{found.finding_id} was found on the machine that {found.node} was"
        raise BadWaiver(f"{was} before it was replaced: nothing to waive")
    return found.node, found.device, subject


def revoke(waiver_id: int, person: str, reason: str) -> Waiver:
    """End a waiver before its time. Raises NoPerson, and BadWaiver if none of that id is valid."""
    check_decision(person, reason, f"waiver {waiver_id} is not revoked")
    with writing() as session:
        row = session.get(WaiverRow, waiver_id, with_for_update=True)
        if row is None or row.revoked_at is not None:
            what = "is revoked already" if row else "does not exist"
            raise BadWaiver(f"waiver {waiver_id} {what}; see `muster waivers list`")
        text = f"revoked the waiver of {row.finding_id}: {reason.strip()}"
        recheck_machines(session, row, f"{person} {text}")
        row.revoked_at = access.now()
        evidence = {"waiver": row.id, "finding": row.finding_id, "person": person}
        access.remark(session, access.node_row(session, row.node), person, text, evidence)
        return to_waiver(row)


def recheck_expired() -> None:
    """Recheck the nodes whose waivers have expired, once for each waiver, however long ago that was."""
    ended = WaiverRow.until <= access.now(), WaiverRow.revoked_at.is_(None), ~WaiverRow.end_seen
    with reading() as session:
        waivers_over = list(session.scalars(select(WaiverRow.id).where(*ended).order_by(WaiverRow.id)))
    for waiver in waivers_over:
        with writing() as session:
            row = session.get_one(WaiverRow, waiver, with_for_update=True)
            recheck_machines(session, row, f"the waiver of {row.finding_id} has ended")
            row.end_seen = True


def recheck_machines(session: Session, row: SuspectRow | WaiverRow, why: str) -> set[str]:
    """Lock the nodes that a suspicion or a locked waiver concerns, and have them rechecked. Returns their names.

    These are the node where it arose, and the one where its part, or the chassis of its place, sits now. Without the
    lock, a node could enter production by the waiver at this moment.
    """
    names = machines_of(session, row)
    for name in sorted(names):
        access.node_row(session, name, lock=True)
        access.recheck(session, name, why)
    return names


def machines_of(session: Session, row: SuspectRow | WaiverRow) -> set[str]:
    """The nodes that ``recheck_machines`` locks."""
    names = {row.node}
    for part in (row.subject, row.subject.partition(" of ")[2]):  # "gpu SERIAL", or "gpu3 of system SERIAL"
        kind, _, serial = part.partition(" ")
        names |= {place[0] for place in [sits_now(session, kind, serial)] if place}
    return names


def find(*, node: str = "", over: bool = False) -> list[Waiver]:
    """The waivers in force, and with ``over`` those that ended; with ``node`` only that machine's.

    Raises UnknownNode.
    """
    with reading() as session:
        machine = machine_of(session, access.node_row(session, node)) if node else None
        given = [to_waiver(row) for row in session.scalars(select(WaiverRow).order_by(WaiverRow.id))]
    moment = access.now()
    return [
        each for each in given if (over or each.holds(moment)) and (machine is None or waivers.concerns(each, machine))
    ]


def machine_of(session: Session, node: NodeRow) -> Machine:
    """The node's present machine."""
    return Machine(node.name, current_serials(session, node.name), node.machine)


def standing(
    session: Session, node: NodeRow, result: StageResult | None = None, serials: Mapping[str, str] | None = None
) -> rules.Standing:
    """The waivers that hold now, and the node's machine, without the slots where ``result`` reports another part.

    ``serials``: ``current_serials`` of the node, if the caller has them.
    """
    now = access.now()
    query = select(WaiverRow).where(WaiverRow.until > now, WaiverRow.revoked_at.is_(None)).order_by(WaiverRow.id)
    valid = tuple(to_waiver(row) for row in session.scalars(query))
    machine = machine_of(session, node) if serials is None else Machine(node.name, serials, node.machine)
    return rules.Standing(valid, _sure(machine, result), now)


def standing_at(node: str, moment: datetime.datetime, result: StageResult | None = None) -> rules.Standing:
    """As ``standing``, at that moment and with the parts that sat in the machine then. Raises UnknownNode."""
    with reading() as session:
        row = access.node_row(session, node)
        machine = _sure(Machine(row.name, serials_at(session, node, moment), row.machine), result)
        return rules.Standing(tuple(_waivers_at(session, moment)), machine, moment)


def _sure(machine: Machine, result: StageResult | None) -> Machine:
    unsure = contested.unsure(machine.serials, result)
    return dataclasses.replace(machine, serials={k: v for k, v in machine.serials.items() if k not in unsure})


def _waivers_at(session: Session, moment: datetime.datetime) -> list[Waiver]:
    query = select(WaiverRow).where(WaiverRow.created_at <= moment, WaiverRow.until > moment)
    query = query.where(or_(WaiverRow.revoked_at.is_(None), WaiverRow.revoked_at > moment)).order_by(WaiverRow.id)
    # A waiver that was revoked later was valid then.
    return [dataclasses.replace(to_waiver(each), revoked_at=None) for each in session.scalars(query)]


def accepted(session: Session, node: NodeRow, findings: Sequence[Finding]) -> bool:
    """Whether each finding above INFO is waived now, no matter when the waiver was given."""
    grave = [finding for finding in findings if finding.severity is not Severity.INFO]
    return all(each.waived for each in marked_now(session, node, grave))


def marked_now(session: Session, node: NodeRow, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings of the node, each with the waiver that covers it now rather than the one at the time of the finding."""
    return rules.mark(findings, standing(session, node)) if findings else ()


def to_waiver(row: WaiverRow) -> Waiver:
    """The waiver as a value."""
    return Waiver(
        id=row.id, node=row.node, subject=row.subject, rule=row.rule, metric=row.metric, device=row.device,
        labels=access.to_labels(row.labels), person=row.person, reason=row.reason, created_at=row.created_at,
        until=row.until, revoked_at=row.revoked_at, finding=row.finding_id, machine=row.machine,
        severity=Severity(row.severity), observed=row.observed, extents=tuple(Extent(**each) for each in row.extents),
    )  # fmt: skip
