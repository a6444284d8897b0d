"""What makes a hidden defect of nodes likelier: what happened to them lately, and what their last runs show; tests."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from typing import Any

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session, load_only

from muster.rules.idle.capacity import Signs
from muster.rules.transitions import SERVING, State
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import CertificateRow, Event, MeasurementRow, Node, Run, StageRecord
from muster.store.fleet import trends
from muster_criteria.model import Verdict
from muster_criteria.xid.judge import EVENT


def signs(since: datetime.datetime) -> dict[str, Signs]:
    """{node: its signs since then}, without nodes that have none. Each XID on each GPU counts once."""
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
        grown, sliding = trends.grown(session, since), trends.sliding(session, since)
        images = trends.image_ratios(session, since)
    by_rack = collections.Counter(racks.values())
    beside = {name: by_rack[rack] - (name in racks) for name, rack in sits.items()}
    none = collections.Counter[str]()
    return {
        name: Signs(
            seen.get(name, 0), repaired.get(name, 0), beside.get(name, 0),
            ecc=(rose := grown.get(name, none))["ecc"], links=rose["links"],
            sliding=sliding.get(name, 0), image=images.get(name, 1.0),
        )
        for name in {*seen, *repaired, *grown, *sliding, *images, *(name for name, count in beside.items() if count)}
    }  # fmt: skip


REFUSED = "claim"
"""The actor of the remark in a node's history that a test of it was refused before it began."""


@dataclasses.dataclass(frozen=True)
class Tried:
    """When the node's last test began and ended, tests that ended SKIPPED apart, and how many of these came since."""

    began: datetime.datetime | None
    ended: datetime.datetime | None
    skipped: int = 0


def last_tests() -> dict[str, Tried]:
    """{node: its last tests on the present machine}; those that ended SKIPPED count if they began in service."""
    ended = (
        select(Run.node, func.max(Run.started_at).label("began"), func.max(Run.ended_at).label("ended"))
        .join(Node, Node.name == Run.node)
        .where(Run.ended_at.is_not(None), Run.verdict != str(Verdict.SKIPPED), Run.started_at >= Node.machine_since)
        .group_by(Run.node)
    )
    last = ended.subquery()
    skipped = (
        select(Run.node, func.count(Run.id))
        .join(Node, Node.name == Run.node)
        .outerjoin(last, last.c.node == Run.node)
        .where(Run.verdict == str(Verdict.SKIPPED), Run.state_before.in_([str(state) for state in SERVING]))
        .where(Run.started_at >= Node.machine_since, or_(last.c.ended.is_(None), Run.ended_at > last.c.ended))
        .group_by(Run.node)
    )
    with reading() as session:
        found = {row.node: Tried(row.began, row.ended) for row in session.execute(ended)}
        for node, count in _pairs(session, skipped).items():
            found[node] = dataclasses.replace(found.get(node, Tried(None, None)), skipped=count)
    return found


def tests_since(node: str, moment: datetime.datetime) -> int:
    """Returns how many tests of the node's present machine began after ``moment`` and ended, SKIPPED ones apart."""
    ended = (
        select(func.count(Run.id))
        .join(Node, Node.name == Run.node)
        .where(Run.node == node, Run.started_at >= Node.machine_since, Run.started_at > moment)
        .where(Run.ended_at.is_not(None), Run.verdict != str(Verdict.SKIPPED))
    )
    with reading() as session:
        return session.scalar(ended) or 0


def certificate_ends() -> dict[str, datetime.datetime]:
    """{node: when the newest certificate of its present machine ended or ends}, without nodes that have none."""
    query = select(CertificateRow).join(Node, Node.name == CertificateRow.node)
    query = query.where(CertificateRow.issued_at >= Node.machine_since).order_by(CertificateRow.issued_at)
    columns = load_only(CertificateRow.node, CertificateRow.revoked_at, CertificateRow.expires_at)
    with reading() as session:
        return {row.node: row.revoked_at or row.expires_at for row in session.scalars(query.options(columns))}


def note_refusal(node: str, why: str) -> None:
    """Note that a test of the node in service was refused before it began. Raises UnknownNode."""
    with writing() as session:
        state = State(access.node_row(session, node).state)
        access.write_event(session, node, state, state, REFUSED, f"not tested: {why}", {})


def refusals(since: datetime.datetime) -> dict[str, str]:
    """{node: why its last test was refused} of the nodes of which one was since then."""
    query = select(Event.node, Event.reason).where(Event.actor == REFUSED, Event.at >= since).order_by(Event.id)
    with reading() as session:
        return _pairs(session, query)


def _pairs(session: Session, query: Select[str, Any]) -> dict[str, Any]:
    return {row[0]: row[1] for row in session.execute(query)}
