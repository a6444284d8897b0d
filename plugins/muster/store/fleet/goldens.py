"""Digests that devices returned, and the goldens promoted from them or withdrawn."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, case, func, insert, or_, select
from sqlalchemy.orm import Session

from muster import acting
from muster.errors import UnknownGolden
from muster.model.states import State
from muster.model.statistics import KeptGolden
from muster.rules.lifecycle.decisions import check_decision
from muster.store.database import access
from muster.store.database.digests import DigestRow, GoldenRow, SuspectRow
from muster.store.database.engine import reading, writing
from muster.store.database.models import NodeRow, RunRow
from muster.store.fleet.measured import NOT_PEERS
from muster.store.fleet.suspects import end_with_goldens, lock_machines, suspect_subjects
from muster.store.machines.parts import current_serials
from muster_criteria.context.goldens import DISSENT_MAX, Golden, Goldens, Sighting, consensus, digests_of, golden_id
from muster_criteria.context.waivers import subject_of

if TYPE_CHECKING:
    from muster_criteria.measured import StageResult


def matching(result: StageResult, run_id: str, *, simulated: bool, before: datetime.datetime | None = None) -> Goldens:
    """The goldens and digests to compare a result with, as recorded ``before`` (default: now).

    Digests of run ``run_id`` itself are left out.
    """
    simulated = simulated or result.simulated
    wanted = {golden_id(each.key, each.op, simulated=simulated) for each in digests_of(result)}
    if not wanted:
        return Goldens(simulated=simulated)
    with reading() as session:
        promoted = {row.golden_id: _golden(row) for row in _current(session, wanted, before)}
        excluded = suspect_subjects(session, before)
        seen = _sightings(session, wanted - promoted.keys(), before)
    digests = tuple(each for each in seen if each.subject not in excluded and each.run.rpartition("/")[2] != run_id)
    return Goldens(promoted, digests, simulated)


def observe(
    session: Session, run: RunRow, result: StageResult, unsure: Collection[str] = (), *, simulated: bool
) -> None:
    """Keep the digests of a result, and promote goldens on which they now agree, in the caller's transaction.

    Digests of the slots ``unsure``, whose part is not known, are left out.
    """
    answers = [each for each in digests_of(result) if each.device not in unsure]
    if not answers:
        return
    access.take_turns(session, "golden")  # two at once would each promote
    serials, moment = current_serials(session, run.node), access.now()
    sightings = [
        Sighting(
            golden_id=golden_id(each.key, each.op, simulated=simulated), key=each.key, op=each.op, digest=each.digest,
            subject=subject_of(each.device, serials) or f"{each.device} of {run.node}", device=each.device,
            node=run.node, run=f"{run.dag_id}/{run.run_id}", seen_at=moment, machine=run.machine,
        )
        for each in answers
    ]  # fmt: skip
    ids = {each.golden_id for each in sightings}
    # Only of these parts: the whole fleet's would be read within the one transaction that may write.
    before = _sightings(session, ids, None, DigestRow.subject.in_({each.subject for each in sightings}))
    known = {(each.golden_id, each.subject, each.digest) for each in before}
    fresh = [each for each in sightings if (each.golden_id, each.subject, each.digest) not in known]
    if fresh:
        session.execute(insert(DigestRow), [_digest_row(each, run, simulated) for each in fresh])
    _promote(session, ids, simulated)


def find(*, withdrawn: bool = False) -> list[KeptGolden]:
    """Every key and operation with a digest, with ``withdrawn`` also the ended goldens."""
    with reading() as session:
        rows = list(session.scalars(select(GoldenRow).order_by(GoldenRow.id)))
        current_ids = {row.golden_id for row in rows if row.withdrawn_at is None}
        others = set(session.scalars(select(DigestRow.golden_id).distinct())) - current_ids
        waiting = _waiting(session, others)
    return [*(_record(row) for row in rows if withdrawn or row.withdrawn_at is None), *waiting]


def withdraw(identity: str, person: str, reason: str) -> tuple[KeptGolden, list[str]]:
    """End a golden, or discard the digests of a key without one; devices then have to agree again.

    Verdicts that cite it stay. Returns it, and the parts that are no longer suspects because they only differed from
    it. Raises UnknownGolden, and NoPerson without a named person and a reason.
    """
    check_decision(person, reason, f"{identity} is not withdrawn")
    with writing() as session:
        lock_machines(session)  # first, as in a task that records: the other order could deadlock with it
        access.take_turns(session, "golden")  # one that is promoted at this moment is withdrawn too
        row = next(iter(_current(session, {identity}, None)), None)
        if row is None:
            seen = _sightings(session, {identity}, None)
            if not seen:
                raise UnknownGolden(
                    f"there is no golden {identity!r}, and nothing seen of it; see `muster golden list`"
                )
            simulated = identity == golden_id(seen[0].key, seen[0].op, simulated=True)
            row = GoldenRow(
                golden_id=identity, key=seen[0].key, op=seen[0].op, simulated=simulated, digest="",
                promoted_at=access.now(), agreed=[],
            )  # fmt: skip
            session.add(row)
        row.withdrawn_at, row.withdrawn_reason = access.now(), reason.strip()
        row.ended_after = session.scalar(select(func.max(DigestRow.id))) or 0
        row.withdrawn_by, row.withdrawn_login = person, acting.current()
        access.write_decision(
            session, person, reason, f"golden {identity} of {row.op} withdrawn",
            {"golden": identity, "digest": row.digest},
        )  # fmt: skip
        cleared = end_with_goldens(session, person, f"golden {identity} is withdrawn: {reason.strip()}")
        return _record(row), cleared


def _promote(session: Session, ids: Collection[str], simulated: bool) -> None:
    excluded, moment = suspect_subjects(session), access.now()
    undecided = set(ids) - {row.golden_id for row in _current(session, ids, None)}
    missing = {each for each in undecided if not _disagree(session, each)}
    for identity, seen in _by_id(_voting(session, _sightings(session, missing, None))).items():
        state = consensus(seen, excluded)
        if state.digest:
            agreed = [
                f"{each.subject} on {each.node} in {each.run}"
                for each in seen
                if each.digest == state.digest and each.subject not in excluded
            ]
            session.add(
                GoldenRow(
                    golden_id=identity, key=seen[0].key, op=seen[0].op, simulated=simulated, digest=state.digest,
                    promoted_at=moment, agreed=agreed,
                )
            )  # fmt: skip
    session.flush()


def _disagree(session: Session, identity: str) -> bool:
    """Whether more than ``DISSENT_MAX`` of the nodes dissent (``consensus``), by counts: their rows are not read."""
    ended = select(func.max(GoldenRow.ended_after)).where(
        GoldenRow.golden_id == identity, GoldenRow.withdrawn_at.is_not(None)
    )
    here = (NodeRow.name == DigestRow.node) & (NodeRow.machine == DigestRow.machine)
    voting = (
        DigestRow.golden_id == identity,
        DigestRow.id > func.coalesce(ended.scalar_subquery(), 0),
        DigestRow.subject.not_in(select(SuspectRow.subject)),
        NodeRow.state.not_in(NOT_PEERS),
    )
    votes = select(DigestRow.digest).join(NodeRow, here).where(*voting).group_by(DigestRow.digest)
    most = func.count(DigestRow.subject.distinct()).desc()
    first = session.scalar(votes.order_by(most, DigestRow.digest).limit(1))
    nodes, opposing = (
        func.count(each.distinct()) for each in (DigestRow.node, case((DigestRow.digest != first, DigestRow.node)))
    )
    counted = session.execute(select(nodes, opposing).join_from(DigestRow, NodeRow, here).where(*voting)).one()
    return counted[1] > DISSENT_MAX * counted[0]


def _waiting(session: Session, ids: Collection[str]) -> list[KeptGolden]:
    excluded = suspect_subjects(session)
    found = []
    for identity, seen in _by_id(_voting(session, _sightings(session, ids, None))).items():
        state = consensus(seen, excluded)
        simulated = identity == golden_id(seen[0].key, seen[0].op, simulated=True)
        found.append(KeptGolden(
            id=identity, op=seen[0].op, key=seen[0].key, simulated=simulated, digest="", devices=state.devices,
            nodes=state.nodes, why_not=state.why_not,
        ))  # fmt: skip
    return found


def _current(session: Session, ids: Collection[str], before: datetime.datetime | None) -> Sequence[GoldenRow]:
    query = select(GoldenRow).where(GoldenRow.golden_id.in_(ids), GoldenRow.digest != "").order_by(GoldenRow.id)
    if before is None:
        return session.scalars(query.where(GoldenRow.withdrawn_at.is_(None))).all()
    valid: ColumnElement[bool] = or_(GoldenRow.withdrawn_at.is_(None), GoldenRow.withdrawn_at >= before)
    return session.scalars(query.where(GoldenRow.promoted_at < before, valid)).all()


def _sightings(
    session: Session, ids: Collection[str], before: datetime.datetime | None, *which: ColumnElement[bool]
) -> list[Sighting]:
    """The digests of these goldens since each was last withdrawn, oldest first; only those that match ``which``."""
    ended = select(GoldenRow.golden_id, func.max(GoldenRow.ended_after).label("after")).where(
        GoldenRow.golden_id.in_(ids), GoldenRow.withdrawn_at.is_not(None)
    )
    query = select(DigestRow).where(DigestRow.golden_id.in_(ids), *which).order_by(DigestRow.id)
    if before is not None:
        ended = ended.where(GoldenRow.withdrawn_at < before)
        query = query.where(DigestRow.seen_at < before)
    since = {row.golden_id: row.after for row in session.execute(ended.group_by(GoldenRow.golden_id))}
    return [_sighting(row) for row in session.scalars(query) if row.id > since.get(row.golden_id, 0)]


def _voting(session: Session, sightings: Sequence[Sighting]) -> list[Sighting]:
    """Those of machines that are in the fleet and not out of service: a machine that is gone can no longer agree."""
    names = {each.node for each in sightings}
    rows = session.execute(select(NodeRow.name, NodeRow.state, NodeRow.machine).where(NodeRow.name.in_(names)))
    present = {(row.name, row.machine) for row in rows if State(row.state) not in NOT_PEERS}
    return [each for each in sightings if (each.node, each.machine) in present]


def _by_id(sightings: Iterable[Sighting]) -> dict[str, list[Sighting]]:
    found: dict[str, list[Sighting]] = {}
    for each in sightings:
        found.setdefault(each.golden_id, []).append(each)
    return found


def _golden(row: GoldenRow) -> Golden:
    return Golden(row.golden_id, row.digest, row.promoted_at, tuple(row.agreed))


def _sighting(row: DigestRow) -> Sighting:
    return Sighting(
        golden_id=row.golden_id, key=row.key, op=row.op, digest=row.digest, subject=row.subject, device=row.device,
        node=row.node, run=f"{row.dag_id}/{row.run_id}", seen_at=row.seen_at, machine=row.machine,
    )  # fmt: skip


def _digest_row(each: Sighting, run: RunRow, simulated: bool) -> dict[str, object]:
    return {
        "golden_id": each.golden_id, "key": each.key, "op": each.op, "simulated": simulated, "digest": each.digest,
        "subject": each.subject, "device": each.device, "node": each.node, "machine": each.machine,
        "dag_id": run.dag_id, "run_id": run.run_id, "seen_at": each.seen_at,
    }  # fmt: skip


def _record(row: GoldenRow) -> KeptGolden:
    agreed = tuple(str(each) for each in row.agreed)
    nodes = {each.partition(" on ")[2].partition(" in ")[0] for each in agreed}
    return KeptGolden(
        id=row.golden_id, op=row.op, key=row.key, simulated=row.simulated, digest=row.digest, devices=len(agreed),
        nodes=len(nodes), why_not="" if row.digest else "forgotten before there was one", promoted_at=row.promoted_at,
        agreed=agreed, withdrawn_at=row.withdrawn_at, withdrawn_by=row.withdrawn_by,
        withdrawn_login=row.withdrawn_login, withdrawn_reason=row.withdrawn_reason,
    )  # fmt: skip
