"""Parts that corrupted data once. No later test or reboot clears such a suspect, only the end of the goldens from which
it differed.

Parts are identified, and followed to another slot or node, as for waivers (``waivers.subject_of``). A suspect that is
taken out no longer concerns the node; for one that stays, a named person decides.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Mapping

from pydantic import TypeAdapter
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from muster.model.runs import OpenFinding
from muster.store.database import access
from muster.store.database.digests import DigestRow, GoldenRow, SuspectRow
from muster.store.database.models import NodeRow, PartRow, PlacementRow, RunRow
from muster.store.decisions.waivers import machines_of, marked_now, recheck_machines
from muster.store.machines.parts import current_serials
from muster_criteria.context.goldens import GOLDEN
from muster_criteria.context.suspicion import makes_suspect
from muster_criteria.context.waivers import CHASSIS, subject_of
from muster_criteria.model import Finding, Judgement

_FINDING = TypeAdapter(Finding)
_BY_GOLDENS = select(SuspectRow).where(SuspectRow.finding["rule"].as_string() == GOLDEN)


def mark(session: Session, run: RunRow, judgement: Judgement, unsure: Collection[str] = ()) -> None:
    """Store each part that a finding of this judgement makes a suspect; known suspects stay unchanged.

    ``unsure``: slots whose part is not known; there the slot of this machine is the suspect.
    """
    suspicious = [finding for finding in judgement.findings if makes_suspect(finding)]
    if not suspicious:
        return
    serials, moment = current_serials(session, run.node), access.now()
    known = {
        (row.subject, row.finding_id)
        for row in session.scalars(select(SuspectRow).where(SuspectRow.node == run.node))
        if row.subject or row.run_id == run.run_id
    }
    for finding in suspicious:
        subject = "" if finding.device in unsure else subject_of(finding.device, serials)
        if (subject, finding.id) not in known:
            session.add(
                SuspectRow(
                    subject=subject, node=run.node, machine=run.machine, device=finding.device, stage=judgement.stage,
                    dag_id=run.dag_id, run_id=run.run_id, since=moment, finding_id=finding.id,
                    finding={**dataclasses.asdict(finding), "waived": ""},
                )
            )  # fmt: skip
    session.flush()


def suspects_on(session: Session, node: NodeRow) -> list[OpenFinding]:
    """The findings that made parts of this machine suspects, the oldest of each part and finding, with the waivers of
    this moment on them.
    """
    serials = current_serials(session, node.name)
    here = {subject_of(slot, serials): slot for slot in serials}
    # What the node's own tests found, a part that sits in it now, or a place of its chassis under another name.
    chassis = [
        SuspectRow.subject.endswith(f" of {slot} {serials[slot]}", autoescape=True)
        for slot in set(CHASSIS) & serials.keys()
    ]
    near = or_(SuspectRow.node == node.name, SuspectRow.subject.in_(here), *chassis)
    rows = {
        (row.subject, row.finding_id): (row, slot)
        for row in session.scalars(select(SuspectRow).where(near).order_by(SuspectRow.id.desc()))
        if (slot := _slot(row, node, serials, here))
    }
    listed = sorted(rows.values(), key=lambda each: each[0].id)
    waived = marked_now(session, node, [_finding(row, slot) for row, slot in listed])
    return [
        OpenFinding(finding, row.stage, row.dag_id, row.run_id, row.since)
        for finding, (row, _) in zip(waived, listed, strict=True)
    ]


def lock_machines(session: Session) -> None:
    """Lock the nodes that ``end_with_goldens`` may have rechecked, all in one order."""
    names = {name for row in session.scalars(_BY_GOLDENS).all() for name in machines_of(session, row)}
    for name in sorted(names):
        access.node_row(session, name, lock=True)


def end_with_goldens(session: Session, person: str, why: str) -> list[str]:
    """End the suspicions that rest on a golden, unless it is in force or the part differs from one that is.

    Returns the parts that are no longer suspects, each with its node.
    """
    ended: list[str] = []
    current = GoldenRow.withdrawn_at.is_(None) & (GoldenRow.digest != "")
    ids = set(session.scalars(select(GoldenRow.golden_id).where(current)))
    differs = select(DigestRow.id).join(GoldenRow, GoldenRow.golden_id == DigestRow.golden_id)
    differs = differs.where(current, GoldenRow.digest != DigestRow.digest)
    for row in session.scalars(_BY_GOLDENS).all():
        part = row.subject or f"{row.device} of {row.node}"
        cited = _FINDING.validate_python(row.finding).source.split()[1]  # as in ``Golden.cited``
        if cited in ids or session.scalar(differs.where(DigestRow.subject == part).limit(1)):
            continue
        names = sorted(recheck_machines(session, row, access.LESS))
        for name in names:
            access.remark(session, access.node_row(session, name), person, f"{part} is no suspect any more: {why}")
        ended.append(f"{part} on {', '.join(names)}" if row.subject else part)
        session.delete(row)
    session.flush()
    return ended


def suspect_subjects(session: Session, before: datetime.datetime | None = None) -> frozenset[str]:
    """The parts that are suspects now, or were ``before``."""
    query = select(SuspectRow.subject).distinct()
    if before is not None:
        query = query.where(SuspectRow.since < before)
    return frozenset(session.scalars(query)) - {""}


def nodes_with_suspects(session: Session) -> frozenset[str]:
    """Every node in which a suspect sits now."""
    names = set(session.scalars(select(SuspectRow.node).distinct()))
    serials = {subject.partition(" ")[2] for subject in suspect_subjects(session)}
    places = select(PlacementRow.node).join(PartRow).where(PartRow.serial.in_(serials), PlacementRow.until.is_(None))
    names |= set(session.scalars(places)) if serials else set()
    return frozenset(name for name in names if suspects_on(session, access.node_row(session, name)))


def _slot(row: SuspectRow, node: NodeRow, serials: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Where the suspect sits in this machine; empty where it does not."""
    if not row.subject:
        return row.device if (row.node, row.machine) == (node.name, node.machine) else ""
    return row.device if row.subject == subject_of(row.device, serials) else here.get(row.subject, "")


def _finding(row: SuspectRow, slot: str) -> Finding:
    stored = _FINDING.validate_python(row.finding)
    summary = f"{stored.summary.rstrip('.')} (a suspect since {row.since:%Y-%m-%d}, which no clean test ends)."
    # No extent: a waiver covers that the part corrupts data, however many bits it was.
    return dataclasses.replace(stored, device=slot, summary=summary, id=row.finding_id, extent=None)
