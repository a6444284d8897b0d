"""Retention: deletes what is older than the settings allow, in small transactions."""

from __future__ import annotations

import datetime
import logging
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, Select, delete, func, or_, select
from sqlalchemy.orm import aliased

from muster.model.states import BROKEN, State
from muster.rules.lifecycle.current import INCONCLUSIVE
from muster.settings import settings
from muster.store.database import access
from muster.store.database.decisions import CertificateRow
from muster.store.database.digests import DigestRow, SuspectRow
from muster.store.database.engine import reading, writing
from muster.store.database.health import HealthRow
from muster.store.database.models import (
    ArtifactRow,
    EventRow,
    LeaseRow,
    MeasurementRow,
    NodeRow,
    PartRow,
    PlacementRow,
    RunRow,
    SnapshotRow,
    StageRow,
)
from muster.store.database.outgoing import OutboxRow, UsersJobRow
from muster.store.database.repairs import IncidentRow
from muster.store.decisions.current import superseded
from muster.store.testing import stages

log = logging.getLogger(__name__)

OUTBOX_DAYS = 30
"""How long mails are kept after they were sent, or refused by the mail server."""
HEALTH_DAYS = 365
"""How long observations between tests are kept after they were last seen; what they caused is in the events."""
JOBS_DAYS = 365
"""How long users' jobs in a node's history are kept after they ended."""
SNAPSHOTS_DAYS = 90
"""How long peer snapshots are kept that no kept verdict cites and that are not the newest."""
CERTIFICATES_DAYS = 365
"""How long certificates that are not their machine's newest are kept after they expired."""
DIGESTS_DAYS = 730
"""How long the digests that a part returned are kept and count for goldens."""
FIRST = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
"""No record is older."""
WITNESSES, QUIET = 20, datetime.timedelta(days=30)
BATCH, FEW = 200, 5
"""Rows deleted per transaction, and of ``HEAVY`` tables: a run in progress waits for it well under a second."""
HEAVY = ArtifactRow, MeasurementRow, RunRow
"""Tables with rows of megabytes, or in which one id stands for hundreds of rows."""
FOUND = 5000
"""The most ids that are looked up at a time."""


def apply(now: datetime.datetime | None = None, *, dry_run: bool = False) -> dict[str, int]:
    """Delete what the MUSTER_RETENTION_* settings no longer keep, or only count it; returns {kind: how much that is}.

    Telemetry, results, digests, mails that were sent or refused, observations between tests, users' jobs, events,
    leases and runs go by their own age or end, measurements by their stage's age, parts and suspicions of them by when
    they were last in a node. Regardless of age stay: runs with a current verdict or on which a suspicion rests; the
    events of each node's adoption, last move, and its and its present machine's first entry into production; and of a
    machine whose case is open (``_open``) telemetry, results, measurements, runs and observations. Verdicts and
    findings stay as long as their run; nodes, goldens and SKU revisions for ever; peer snapshots while a kept verdict
    cites them, and the newest of each kind; certificates until a year after they expired, and the newest of each
    machine.
    """
    moment = now or agreed_now()
    keep = settings()

    def before(days: int) -> datetime.datetime:
        return moment - datetime.timedelta(days=days) if days else FIRST

    purge = _count if dry_run else _purge
    parts, events = before(keep.retention_parts_days), before(keep.retention_events_days)
    figures = aliased(MeasurementRow)
    old_stages = select(StageRow.id).where(
        StageRow.recorded_at < before(keep.retention_measurements_days),
        select(figures.id).where(figures.stage == StageRow.id).exists(), ~_open(StageRow),
    )  # fmt: skip
    past = select(RunRow.id).where(RunRow.ended_at < before(keep.retention_runs_days))
    member = aliased(RunRow)  # the first has what all members of a block share
    kept = select(member.id).where(member.dag_id == RunRow.dag_id, member.run_id == RunRow.run_id)
    past = past.where(~kept.where(or_(_open(member), _current(member), _made_suspects(member))).exists())
    mails_over = or_(*(at < before(OUTBOX_DAYS) for at in (OutboxRow.sent_at, OutboxRow.parked_at)))
    suspects, runs = purge(SuspectRow.id, _suspects_gone(parts)), purge(RunRow.id, past)
    for column, over in (
        (PlacementRow.id, or_(PlacementRow.until < parts, PlacementRow.part_id.in_(_gone(parts)))),
        (LeaseRow.id, LeaseRow.released_at < events),
        (UsersJobRow.id, UsersJobRow.until < before(JOBS_DAYS)),
        (HealthRow.id, (HealthRow.last_seen < before(HEALTH_DAYS)) & ~_open(HealthRow)),
    ):
        purge(column, select(column).where(over))
    return {
        "telemetry": purge(ArtifactRow.id, _artifacts(before(keep.retention_telemetry_days), stages.TELEMETRY)),
        "results": purge(
            ArtifactRow.id, _artifacts(before(keep.retention_results_days), stages.RESULT, stages.CHASSIS)
        ),
        "measurements": purge(MeasurementRow.stage, old_stages),
        "runs": runs,
        "mails": purge(OutboxRow.id, select(OutboxRow.id).where(mails_over)),
        "snapshots": purge(SnapshotRow.id, _uncited_snapshots(before(SNAPSHOTS_DAYS))),
        "digests": purge(DigestRow.id, select(DigestRow.id).where(DigestRow.seen_at < before(DIGESTS_DAYS))),
        "suspects": suspects,
        "certificates": purge(CertificateRow.id, _over_certificates(before(CERTIFICATES_DAYS))),
        "parts": purge(PartRow.id, _gone(parts)),
        "events": purge(EventRow.id, _over_events(events)),
    }


def _open(row: type[HealthRow | RunRow | StageRow]) -> ColumnElement[bool]:
    """Whether ``row`` is of a present machine that is broken, has a held verdict, or has a repair that is not proved
    yet: its measurements are the evidence for the next decision, however long that takes.
    """
    incident = select(IncidentRow.id).where(IncidentRow.node == NodeRow.name, IncidentRow.machine == NodeRow.machine)
    unproved = incident.where(IncidentRow.closed_at.is_(None), IncidentRow.level != "").exists()
    case = or_(NodeRow.state.in_(BROKEN), NodeRow.held_run != "", unproved)
    return select(NodeRow.name).where(NodeRow.name == row.node, NodeRow.machine == row.machine, case).exists()


def _current(run: type[RunRow]) -> ColumnElement[bool]:
    """Whether a run has a conclusive verdict on a present machine that no later one replaced (``rules.current``).

    Age alone removes no FAIL or WARN for which the gate to production refuses a node, and no PASS without which a
    verdict that it replaced would be current again.
    """
    mine = aliased(StageRow)
    return (
        select(mine.id)
        .join(NodeRow, NodeRow.name == mine.node)
        .where(mine.run == run.id, mine.current, mine.verdict.not_in(INCONCLUSIVE), ~superseded(mine))
        .where(mine.machine == NodeRow.machine, NodeRow.state != State.RETIRED)
        .exists()
    )


def _made_suspects(run: type[RunRow]) -> ColumnElement[bool]:
    """Whether a suspicion rests on a run: a person waives it by the finding, which goes with the run."""
    of_run = SuspectRow.node == run.node, SuspectRow.dag_id == run.dag_id, SuspectRow.run_id == run.run_id
    return select(SuspectRow.id).where(*of_run).exists()


def agreed_now() -> datetime.datetime:
    """The earliest time by several clocks, so that one that is ahead does not make data look old.

    These are the database's, this machine's, and those that stamped the last events, by the median of ``WITNESSES``
    events plus ``QUIET``. A fleet without events for longer keeps its data longer.
    """
    query = select(EventRow.at).order_by(EventRow.id.desc()).limit(WITNESSES)
    with reading() as session:
        seen = sorted(session.scalars(query))
    known = [access.now(), _machine_now(), *([seen[(len(seen) - 1) // 2] + QUIET] if seen else [])]
    agreed = min(known)
    if max(known) - agreed > QUIET:
        log.warning("a clock of controller or database is wrong: nothing is deleted as of later than %s", agreed)
    return agreed


def _machine_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _in_use(before: datetime.datetime) -> ColumnElement[bool]:
    """Which placements show that a part was in a node since ``before``; a retired node no longer has its parts."""
    retired = (NodeRow.state == State.RETIRED) & (PlacementRow.seen_at < before)
    return or_(PlacementRow.until.is_(None) & ~retired, PlacementRow.until >= before)


def _gone(before: datetime.datetime) -> Select[int]:
    """The parts that have been in no node since then."""
    in_use = select(PlacementRow.id).join(NodeRow, PlacementRow.node == NodeRow.name).where(_in_use(before))
    mine = in_use.where(PlacementRow.part_id == PartRow.id).correlate(PartRow)
    return select(PartRow.id).where(PartRow.first_seen < before, ~mine.exists())


def _suspects_gone(before: datetime.datetime) -> Select[int]:
    """The suspicions of parts that have been in no node since then, and of places in machines that are gone."""
    old = select(SuspectRow.id, SuspectRow.subject).where(SuspectRow.since < before)
    of_machine = old.join(NodeRow, SuspectRow.node == NodeRow.name).where(
        SuspectRow.subject == "", or_(SuspectRow.machine != NodeRow.machine, NodeRow.state == State.RETIRED)
    )
    with reading() as session:
        gone = [row.id for row in session.execute(of_machine)]
        # A part, "gpu SERIAL", or a place in a chassis, "gpu3 of system SERIAL"; a serial may be any text.
        named = {row.id: {row.subject, row.subject.partition(" of ")[2]} for row in session.execute(old) if row.subject}
        serials = {part.partition(" ")[2] for parts in named.values() for part in parts}
        used = select(PartRow.kind, PartRow.serial).join(PlacementRow).join(NodeRow, PlacementRow.node == NodeRow.name)
        used = used.where(PartRow.serial.in_(serials), _in_use(before))
        here = {f"{row.kind} {row.serial}" for row in session.execute(used)}
    gone += [id_ for id_, parts in named.items() if not parts & here]
    return select(SuspectRow.id).where(SuspectRow.id.in_(gone))


def _artifacts(before: datetime.datetime, *kinds: str) -> Select[int]:
    query = select(ArtifactRow.id).join(StageRow, ArtifactRow.stage == StageRow.id).where(~_open(StageRow))
    return query.where(ArtifactRow.kind.in_(kinds), ArtifactRow.created_at < before)


def _uncited_snapshots(before: datetime.datetime) -> Select[int]:
    newest = select(func.max(SnapshotRow.id)).group_by(SnapshotRow.sku, SnapshotRow.level, SnapshotRow.simulated)
    # Rather than NOT IN: beyond its work_mem, PostgreSQL would read all verdicts again for each snapshot.
    cited = select(StageRow.id).where(StageRow.snapshot == SnapshotRow.version).exists()
    return select(SnapshotRow.id).where(SnapshotRow.made_at < before, SnapshotRow.id.not_in(newest), ~cited)


def _over_certificates(before: datetime.datetime) -> Select[str]:
    later = aliased(CertificateRow)
    newer = select(later.id).where(
        later.node == CertificateRow.node, later.machine == CertificateRow.machine,
        later.number > CertificateRow.number,
    )  # fmt: skip
    return select(CertificateRow.id).where(CertificateRow.expires_at < before, newer.exists())


def _over_events(before: datetime.datetime) -> Select[int]:
    """Events from before then, without those that say since when a node and its present machine have served, whether
    it was adopted, and how it came into its state: a node may be at its vendor's, or serve, for longer.
    """
    earlier, production = aliased(EventRow), State.PRODUCTION
    entered = select(earlier.id).join(NodeRow, NodeRow.name == earlier.node).where(
        earlier.node == EventRow.node, earlier.from_state != earlier.to_state, earlier.to_state == production,
        earlier.id < EventRow.id, or_(EventRow.id <= NodeRow.machine_event, earlier.id > NodeRow.machine_event),
    )  # fmt: skip
    first = (EventRow.from_state != production) & (EventRow.to_state == production) & ~entered.exists()
    adopted = EventRow.evidence["adopted"].as_boolean().is_(True)
    later = aliased(EventRow)
    moved_on = select(later.id).where(later.node == EventRow.node, later.from_state != later.to_state)
    last = (EventRow.from_state != EventRow.to_state) & ~moved_on.where(later.id > EventRow.id).exists()
    return select(EventRow.id).where(EventRow.at < before, ~first, ~adopted, ~last)


def _count(column: Any, ids: Select[Any]) -> int:
    """How many rows ``_purge`` would delete."""
    with reading() as session:
        return session.scalar(select(func.count()).select_from(column.class_).where(column.in_(ids))) or 0


def _purge(column: Any, ids: Select[Any]) -> int:
    """Delete the rows of ``column``'s table whose ``column`` is one of ``ids``, batch by batch.

    The ids are looked up without the write lock, which every result waits for, and each batch again under it.
    """
    (which,), size, deleted = ids.selected_columns, FEW if column.class_ in HEAVY else BATCH, 0
    while found := _found(ids):
        for start in range(0, len(found), size):
            still = ids.where(which.in_(found[start : start + size]))
            with writing() as session:
                result = session.execute(
                    delete(column.class_).where(column.in_(still)), execution_options={"synchronize_session": False}
                )
                assert isinstance(result, CursorResult)
                deleted += result.rowcount
    return deleted


def _found(ids: Select[Any]) -> list[Any]:
    with reading() as session:
        return list(session.scalars(ids.limit(FOUND)))
