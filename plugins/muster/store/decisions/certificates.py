"""Certificates: issued with the move into production, revoked when a part, firmware or driver changes."""

from __future__ import annotations

import collections
import datetime
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, undefer

from muster import acting
from muster.errors import BadCertificate, ControllerFault
from muster.model.certificates import Certificate, VersionChange
from muster.model.events import Evidence
from muster.model.stages import LEVELS, STAGES
from muster.model.states import SERVING, State
from muster.rules.lifecycle import certificate
from muster.rules.lifecycle.current import INCONCLUSIVE
from muster.settings import settings
from muster.store.database import access
from muster.store.database.decisions import CertificateRow, unrevoked
from muster.store.database.engine import SQLITE, reading, rehearsing
from muster.store.database.models import MeasurementRow, NodeRow, RunRow, StageRow
from muster.store.decisions.current import Unjudged, current_verdicts, of_machine, unjudged
from muster.store.decisions.signing import key_path, public_key, public_text, signing_key
from muster.store.machines.parts import current_serials, serials_of_stage
from muster_criteria.model import Verdict

OVER = datetime.timedelta(days=30)
"""A certificate that expired longer ago is over for good, even if the clock is ahead by less than this."""
_PASSED = (Verdict.PASS, Verdict.WARN)
"""Verdicts of a stage that passed: a warning is in production only where a person accepted it."""


def newest(node: str) -> Certificate | None:
    """The newest certificate of the node's present machine, valid or not. Raises UnknownNode."""
    with reading() as session:
        row = _newest(session, access.node_row(session, node))
        return _value(row) if row else None


def get(certificate_id: str) -> Certificate | None:
    """The certificate with this id, of any node and any age; None if the records do not hold it."""
    with reading() as session:
        row = session.get(CertificateRow, certificate_id)
        return _value(row) if row else None


def key_of(key_id: str) -> Ed25519PublicKey:
    """The public key with this id. Raises BadCertificate if it signed no certificate in the records."""
    with reading() as session:
        known = session.scalars(select(CertificateRow.public_key).distinct())
        found = (key for key in map(public_key, map(str.encode, known)) if certificate.key_id(key) == key_id)
        if (key := next(found, None)) is None:
            raise BadCertificate(
                f"these records hold no certificate that key {key_id[:16]!r} signed: name another with --key"
            )
    return key


def of_node(node: str, limit: int = 100) -> list[Certificate]:
    """The certificates under the node's name, those of earlier machines too, the newest first."""
    query = select(CertificateRow).where(CertificateRow.node == node).order_by(CertificateRow.number.desc())
    with reading() as session:
        found = session.scalars(query.options(undefer(CertificateRow.document)).limit(limit))
        return [_value(row) for row in found]


def uncertified() -> dict[str, str]:
    """{node: why} of the nodes in production, outside shadow mode, without a valid certificate."""
    now = access.now()
    with reading() as session:
        served = and_(NodeRow.state == State.PRODUCTION, NodeRow.shadow.is_(False))
        invalid = or_(CertificateRow.id.is_(None), ~unrevoked(), CertificateRow.expires_at <= now)
        newest = {node.name: row for node, row in _newest_of(session, served, invalid)}
    return {
        name: certificate.why_invalid(row.revoked, row.expires_at, now) if (row := newest[name]) else "it has none"
        for name in sorted(newest)
    }


def version_changes() -> dict[str, VersionChange]:
    """{node: its change} of the nodes in service whose driver or firmware is not what was certified."""
    found: dict[str, tuple[tuple[str, bool], dict[str, str]]] = {}
    certified: list[tuple[tuple[str, bool], Mapping[str, Any]]] = []
    now = access.now()
    with reading() as session:
        serves = NodeRow.state.in_(SERVING)
        reported = _environments(session, serves)
        for node, row in _newest_of(session, serves):
            if row is None:
                continue
            kind, was = (node.sku, node.simulated), row.certified["environment"]
            if not certificate.why_invalid(row.revoked, row.expires_at, now):
                certified.append((kind, was))
            elif row.revoked:
                present = reported.get(node.name, {})
                new = {
                    name: now
                    for name, now in sorted(present.items())
                    if name in was and certificate.is_another(name, now, was[name])
                }
                if new:
                    found[node.name] = (kind, new)
    return {
        name: VersionChange(
            ", ".join(f"{part} {version}" for part, version in new.items()),
            sum(kind == other and _has(was, new) for other, was in certified),
        )
        for name, (kind, new) in found.items()
    }


def _has(certified: Mapping[str, Any], versions: Mapping[str, str]) -> bool:
    """Whether a certificate attests these versions."""
    known = versions.keys() <= certified.keys()
    return known and not any(certificate.is_another(name, now, certified[name]) for name, now in versions.items())


def versions_of(nodes: Sequence[str], names: Sequence[str] = certificate.WATCHED) -> dict[str, dict[str, str]]:
    """{node: {name: version}} of these ``names`` in its environment, as each reported it last. Raises UnknownNode."""
    with reading() as session:
        rows = [access.node_row(session, name) for name in nodes]
        reported = _environments(session, NodeRow.name.in_(nodes), names)
    return {row.name: reported.get(row.name, {}) for row in rows}


def make_key() -> Path | None:
    """Make the signing key if there is neither a key nor a certificate yet. Returns its file, or None if none was made.

    Raises ControllerFault.
    """
    with reading() as session:
        wanted = _to_be_made(session)
    if not wanted:
        return None
    signing_key(create=True)
    return key_path()


def check_signing_key() -> None:
    """Raise ControllerFault unless certificates can be signed: asked before a node leaves service for a test."""
    with reading() as session:
        made_later = _to_be_made(session)
    if not made_later:
        signing_key(create=False)


def newest_is_of_this_key() -> bool:
    """Whether the key that signs now signed the newest certificate; true without one. Raises ControllerFault."""
    with reading() as session:
        newest = select(CertificateRow.document, CertificateRow.issued_at).order_by(CertificateRow.issued_at.desc())
        found = session.execute(newest.limit(1)).first()
    if found is None:
        return True
    try:
        certificate.verify(found.document, signing_key(create=False).public_key(), found.issued_at)
    except BadCertificate:
        return False
    return True


def issue(session: Session, node: NodeRow, actor: str, evidence: Evidence, *, whole: bool = False) -> None:
    """Issue a certificate in the transaction that admits the node; none for a node in shadow mode.

    Its validity counts from the oldest pass that it rests on, or from a person's decision. The node keeps its last
    certificate if the test found nothing new (unless a ``whole`` test only repeats warnings or gaps that a person
    accepted), if a stage did not pass, or passed with another part, driver or firmware than the node has now, or if
    the oldest pass is the same as before: otherwise short tests would renew it for ever. Raises ControllerFault.
    """
    if State(node.state) is not State.PRODUCTION or node.shadow:
        return
    nothing_new = evidence.nothing_new and not (whole and evidence.verdict in (Verdict.WARN, Verdict.PROVISIONAL))
    if evidence.held or nothing_new or (not evidence.person and passed_before_change(session, node)):
        return
    now, passed = access.now(), _passed(session, node, () if evidence.person else _accepted(session, node))
    if not (passed or evidence.person):
        return
    # A clock that was ahead may have dated a pass in the future.
    begins = now if evidence.person else min(now, *(stage.recorded_at for stage, _ in passed))
    expires_at = begins + datetime.timedelta(days=settings().certificate_days)
    gravest = max((Verdict(stage.verdict) for stage, _ in passed), key=[*Verdict].index, default=Verdict.PASS)
    by_test = str(gravest) if evidence.verdict and not evidence.person else ""
    certified = {"serials": current_serials(session, node.name), "environment": _environment(session, node)}
    last = None if evidence.person else _newest(session, node)
    if last is not None and _says_it(last, by_test, expires_at, certified):
        return
    content: dict[str, Any] = {
        "id": secrets.token_hex(8),
        "node": node.name,
        "issued_at": now.isoformat(),
        "expires_at": expires_at.isoformat(),
        **certified,
        "sku": node.sku,
        "stages": _stages(session, node),
        "measurements_sha256": _measurements(session, node),
        "admitted_by": evidence.person or actor,
        "reason": evidence.reason,
        "simulated": node.simulated,
        "verdict": by_test or "admitted by a person",
    }
    numbers, key = select(func.max(CertificateRow.number)).where(CertificateRow.node == node.name), _key(session)
    session.add(
        CertificateRow(
            id=content["id"], number=1 + (session.scalar(numbers) or 0), node=node.name, machine=node.machine,
            issued_at=now, expires_at=expires_at, verdict=content["verdict"], tested_since=tested_since(session, node),
            certified=certified, document=certificate.sign(content, key), public_key=public_text(key),
        )
    )  # fmt: skip
    session.flush()


def _says_it(
    row: CertificateRow, verdict: str, expires_at: datetime.datetime, certified: Mapping[str, Mapping[str, str]]
) -> bool:
    """Whether the certificate says what a new one would. A changed part or version has already revoked it; an
    additional one needs a new certificate.
    """
    if row.revoked or row.expires_at < expires_at or (row.verdict != verdict and {row.verdict, verdict} <= {*Verdict}):
        return False
    return all(certified[kind].keys() <= row.certified[kind].keys() for kind in certified)


def compare(session: Session, node: NodeRow, environment: Mapping[str, Any]) -> None:
    """Revoke the node's newest and unexpired certificates if they name another part, driver or firmware than it has.

    ``environment``: the node's driver and firmware versions, as it reports them.
    """
    if not (rows := _unrevoked(session, node)):
        return
    serials = current_serials(session, node.name)
    changed: dict[str, list[CertificateRow]] = collections.defaultdict(list)
    for row in rows:
        changed["; ".join(certificate.changes(row.certified, serials, environment))].append(row)
    for why, those in changed.items():
        if why:
            _revoke(session, node, those, why)


def revoke(session: Session, node: NodeRow, why: str) -> None:
    """Revoke the node's newest certificate, and the earlier ones that have not expired."""
    if rows := _unrevoked(session, node):
        _revoke(session, node, rows, why)


def _revoke(session: Session, node: NodeRow, rows: Sequence[CertificateRow], why: str) -> None:
    now, last = access.now(), access.last_stage(session, node)
    for row in rows:
        row.revoked, row.revoked_at, row.revoked_after = why, now, last
    evidence = {"certificates": [row.id for row in rows]}
    access.remark(session, node, "muster", f"its certificate is revoked: {why}", evidence)


def _unrevoked(session: Session, node: NodeRow) -> Sequence[CertificateRow]:
    """The present machine's unrevoked certificates, newest first, without earlier ones that expired ``OVER`` ago."""
    here = CertificateRow.node == node.name, CertificateRow.machine == node.machine
    newest = CertificateRow.number == select(func.max(CertificateRow.number)).where(*here).scalar_subquery()
    query = select(CertificateRow).where(*here, unrevoked(), newest | (CertificateRow.expires_at > access.now() - OVER))
    return session.scalars(query.order_by(CertificateRow.number.desc())).all()


def _key(session: Session) -> Any:
    if not _to_be_made(session):
        return signing_key(create=False)
    if acting.by_command() and session.get_bind().dialect.name != SQLITE:
        raise ControllerFault(
            f"the signing key {key_path()} is missing, and this MUSTER_HOME may be another than the components': "
            "`muster db upgrade`, run as their user, makes it there"
        )
    return Ed25519PrivateKey.generate() if rehearsing() else signing_key(create=True)


def _to_be_made(session: Session) -> bool:
    """Whether the first key has yet to be made. A lost key is replaced only by a person (``replace_key``)."""
    if settings().certificate_key_file is not None or key_path().exists():
        return False
    return not session.scalar(select(func.count()).select_from(CertificateRow))


def _newest(session: Session, node: NodeRow) -> CertificateRow | None:
    query = select(CertificateRow).where(CertificateRow.node == node.name, CertificateRow.machine == node.machine)
    return session.scalar(query.order_by(CertificateRow.number.desc()).limit(1))


def _newest_of(
    session: Session, which: ColumnElement[bool], *found: ColumnElement[bool]
) -> Iterator[tuple[NodeRow, CertificateRow | None]]:
    """Each node that matches ``which`` with its machine's newest certificate, or None; ``found`` filters the pairs."""
    place = func.row_number().over(partition_by=CertificateRow.node, order_by=CertificateRow.number.desc())
    ranked = (
        select(CertificateRow.id, CertificateRow.node, place.label("place"))
        .join(NodeRow, NodeRow.name == CertificateRow.node)
        .where(which, CertificateRow.machine == NodeRow.machine)
        .subquery()
    )
    query = (
        select(NodeRow, CertificateRow)
        .outerjoin(ranked, and_(ranked.c.node == NodeRow.name, ranked.c.place == 1))
        .outerjoin(CertificateRow, CertificateRow.id == ranked.c.id)
    )
    yield from session.execute(query.where(which, *found))


def _stages(session: Session, node: NodeRow) -> list[dict[str, Any]]:
    ids = [stage for stage, _ in current_verdicts(session, node)]
    query = select(StageRow, RunRow).join(RunRow, StageRow.run == RunRow.id).where(StageRow.id.in_(ids))
    return [
        {
            "stage": stage.stage, "level": stage.level, "verdict": stage.verdict, "run": f"{run.dag_id}/{run.run_id}",
            "run_started_at": run.started_at.isoformat(), "recorded_at": stage.recorded_at.isoformat(),
            "sku": stage.sku, "sku_revision": stage.sku_version, "result_sha256": stage.result_sha256,
            "coverage": {"required": stage.required, "measured": stage.measured, "judged": stage.judged},
        }
        for stage, run in session.execute(query.order_by(StageRow.id))
    ]  # fmt: skip


def passed_before_change(session: Session, node: NodeRow) -> bool:
    """Whether a stage last passed with another part, driver or firmware than the node has now."""
    versions, parts = _environment(session, node), current_serials(session, node.name)
    for stage, _ in _latest(session, node).values():
        before = serials_of_stage(session, node.name, stage.origin)
        if any(before.get(slot, serial) != serial for slot, serial in parts.items()):
            return True
        if any(certificate.is_another(name, now, stage.environment.get(name) or now) for name, now in versions.items()):
            return True
    return False


def tested_since(session: Session, node: NodeRow) -> datetime.datetime | None:
    """The start of the earliest run that the node's qualification rests on; None if some stage did not pass."""
    return min((run.started_at for _, run in _passed(session, node)), default=None)


def _passed(session: Session, node: NodeRow, accepted: Collection[Unjudged] = ()) -> list[tuple[StageRow, RunRow]]:
    """The newest verdict of each stage, [] if some stage did not pass, or leaves more unjudged than is ``accepted``."""
    passed = [each for each in _latest(session, node).values() if each[0].verdict in _PASSED or (
        each[0].verdict == Verdict.PROVISIONAL and unjudged(each[0]).issubset(accepted))]  # fmt: skip
    return passed if len(passed) == len(STAGES) else []


def _accepted(session: Session, node: NodeRow) -> set[Unjudged]:
    """What was unjudged when a person admitted the node, in tests of any level: later tests need not judge more."""
    known = [(StageRow.id <= node.accepted) & StageRow.level.in_(LEVELS[at:]) for at in range(len(LEVELS))]
    return {gap for each in known for row, _ in _latest(session, node, each).values() for gap in unjudged(row)}


def _latest(
    session: Session, node: NodeRow, known: ColumnElement[bool] | InstrumentedAttribute[bool] = StageRow.current
) -> dict[str, tuple[StageRow, RunRow]]:
    """{stage: its newest conclusive verdict} of the node under its present SKU, at any level: a revalidation is shorter
    than the qualification, whose verdicts also stay current. ``known``: which verdicts count.
    """
    newest = select(func.max(StageRow.id)).where(*of_machine(node), known, StageRow.stage.in_(STAGES))
    newest = newest.where(StageRow.verdict.not_in(INCONCLUSIVE), StageRow.id > node.sku_after)
    ids = list(session.scalars(newest.group_by(StageRow.stage)))
    query = select(StageRow, RunRow).join(RunRow, StageRow.run == RunRow.id).where(StageRow.id.in_(ids))
    return {stage.stage: (stage, run) for stage, run in session.execute(query)}


def _measurements(session: Session, node: NodeRow) -> str:
    ids = [stage for stage, _ in current_verdicts(session, node)]
    rows = session.scalars(
        select(MeasurementRow).where(MeasurementRow.stage.in_(ids)).order_by(MeasurementRow.stage, MeasurementRow.id)
    )
    return certificate.digest(
        [[row.probe, row.metric, row.device, row.unit, repr(row.value), row.text, row.labels] for row in rows]
    )


def _environment(session: Session, node: NodeRow) -> dict[str, str]:
    return _environments(session, NodeRow.name == node.name).get(node.name, {})


def _environments(
    session: Session, which: ColumnElement[bool], names: Sequence[str] = certificate.WATCHED
) -> dict[str, dict[str, str]]:
    """{node: {name: version}} of driver and firmware, as each node of ``which`` reported them last."""
    return {
        node: {name: str(environment[name]) for name in names if environment.get(name)}
        for node, environment in session.execute(select(NodeRow.name, NodeRow.environment).where(which))
        if environment
    }


def _value(row: CertificateRow) -> Certificate:
    return Certificate(
        id=row.id, node=row.node, issued_at=row.issued_at, expires_at=row.expires_at, verdict=row.verdict,
        tested_since=None if row.revoked else row.tested_since, revoked=row.revoked, document=row.document,
        revoked_at=row.revoked_at,
    )  # fmt: skip
