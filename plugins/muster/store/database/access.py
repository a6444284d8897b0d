"""Rows as values, and the queries and writes that every module of the records needs."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, cast, func, or_, select, text, update
from sqlalchemy.orm import Session

from muster import acting
from muster.errors import IllegalMove, NodeLeased, Refusal, UnknownNode, UnknownRun
from muster.model.events import Event, Evidence
from muster.model.nodes import Lease, Lemon, Node, Pause
from muster.model.runs import Run, RunKey, StageVerdict
from muster.model.states import BROKEN, SERVING, State
from muster.rules.lifecycle import transitions as lifecycle
from muster.store.database import clock
from muster.store.database.decisions import CertificateRow, QuestionRow, unrevoked
from muster.store.database.health import BmcRow, HealthRow, SweepRow
from muster.store.database.models import (
    EventRow,
    FindingRow,
    JobRow,
    LeaseRow,
    MeasurementRow,
    NodeRow,
    RunRow,
    StageRow,
)
from muster.store.database.wanted import follow_state
from muster_criteria.health import presence
from muster_criteria.health.policy import HealthAction
from muster_criteria.model import Action, Extent, FaultClass, Finding, Lack, Observation, Severity, Variant, Verdict
from muster_node.contract import END_FENCED

NODE_LOCK = {"key_share": True}
"""Keeps other writers from a node's row, but not from rows that refer to it. With PostgreSQL's stronger lock, two nodes
of a rack that fail at once would wait for each other, as each adds a remark to the other's history.
"""

SOUND = (Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL)
"""Verdicts of stages and runs that measured all that was wanted, and found nothing critical."""
CONCLUSIVE = (*SOUND, Verdict.FAIL)
"""Verdicts of stages that failed or passed."""

BLAMELESS = or_(StageRow.job_end == END_FENCED, cast(StageRow.missing, Text).contains(f'"{Lack.REPLANNED}"'))
"""Condition on a stage: the node refused its job as an old one, or the SKU file changed while its probes ran."""

OTHER_MACHINE = "another machine"
"""``StageRow.job_end`` where the result was refused as another machine's."""

COMES, GOES = EventRow.to_state.in_(SERVING), EventRow.from_state.in_(SERVING)
"""Conditions on an event: its node serves after it; its node served before it."""
ENTERS = and_(EventRow.from_state != EventRow.to_state, COMES, ~GOES)
"""Condition on an event: its node enters service. The first part is redundant, but lets ``ix_events_moves`` be used."""

RECHECK, LESS = "recheck", "less stands against it"
"""The key in a session's ``info`` of {node: why} by ``recheck``, and the ``why`` that can only end a hold."""


def now() -> datetime.datetime:
    """This moment, in UTC, by the one clock of the records. Raises DatabaseNotReady."""
    return clock.now()


def node_row(session: Session, name: str, *, lock: bool = False) -> NodeRow:
    """The node's row, locked against other writers if asked. Raises UnknownNode."""
    row = session.get(NodeRow, name, with_for_update=NODE_LOCK if lock else None)
    if row is None:
        raise UnknownNode(f"no node {name!r} is enrolled; see `muster node list`, or enrol it with `muster node add`")
    return row


def lock_nodes(session: Session, names: Iterable[str]) -> None:
    """Lock those of these nodes that exist, in order of name, as every caller does, so that none deadlock."""
    for name in sorted(set(names)):
        session.get(NodeRow, name, with_for_update=NODE_LOCK)


def take_turns(session: Session, at: str) -> None:
    """Serialise the transactions with the same ``at``, from here until they end. SQLite serialises writers anyway.

    Two enrolments at once, for example, would each see that a name, key or serial is free.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"muster.{at}"})


def of_run(key: RunKey) -> tuple[ColumnElement[bool], ...]:
    """Conditions that select the run's rows, one for each node."""
    return RunRow.dag_id == key.dag_id, RunRow.run_id == key.run_id


def first_of_run(session: Session, key: RunKey) -> RunRow:
    """The row of the run's first node, which holds what all nodes of a block share. Raises UnknownRun."""
    row = session.scalar(select(RunRow).where(*of_run(key)).order_by(RunRow.id).limit(1))
    if row is None:
        raise UnknownRun(f"no run {key.run_id!r} of {key.dag_id} is recorded; see `muster runs list`")
    return row


def block_of(session: Session, key: RunKey) -> dict[str, Any]:
    """How the run's block meets, with what is kept for all of its members; empty for a run that has claimed none."""
    row = session.scalar(select(RunRow.block).where(*of_run(key)).order_by(RunRow.id).limit(1))
    return dict(row or {})


def key_of(session: Session, run_id: str) -> RunKey:
    """The key of a run, from its id or from the key as text. Raises UnknownRun if runs of several DAGs have the id."""
    if key := RunKey.parse(run_id):
        return key
    dags = session.scalars(select(RunRow.dag_id).where(RunRow.run_id == run_id).distinct().order_by(RunRow.dag_id))
    keys = [RunKey(dag, run_id) for dag in dags] or [RunKey("any DAG", run_id)]
    if len(keys) > 1:
        raise UnknownRun(f"several DAGs have a run {run_id!r}: name one of {', '.join(map(str, keys))}")
    return keys[0]


def run_row(session: Session, key: RunKey, node: str = "") -> RunRow:
    """The run's row, of ``node`` if the run tests several. Raises UnknownRun."""
    query = select(RunRow).where(*of_run(key))
    rows = list(session.scalars(query.where(RunRow.node == node) if node else query))
    if not rows:
        on = f" on {node}" if node else ""
        raise UnknownRun(f"no run {key.run_id!r} of {key.dag_id}{on} is recorded; see `muster runs list`")
    if len(rows) > 1:
        names = ", ".join(sorted(row.node for row in rows))
        raise UnknownRun(
            f"run {key.run_id!r} of {key.dag_id} tests several nodes ({names}): name the one that is meant"
        )
    return rows[0]


def is_another(row: RunRow | QuestionRow, run_after: datetime.datetime | None) -> bool:
    """Whether Airflow has since made another run with the row's id, because it no longer had the recorded one.

    ``run_after``: that of Airflow's run; None if not known.
    """
    return None not in (row.run_after, run_after) and row.run_after != run_after


def refuse_another(row: RunRow | QuestionRow, run_after: datetime.datetime | None, since: datetime.datetime) -> None:
    """Raise IllegalMove if Airflow's run is not the recorded one with its id, which began at ``since``."""
    if is_another(row, run_after):
        raise IllegalMove(
            f"Muster has a run {row.run_id} of {row.dag_id} from {since:%Y-%m-%d %H:%M} UTC, and this is another one: "
            "start it with another reason or run id",
            Refusal.ANOTHER_RUN,
        )


def live_lease(session: Session, node: str) -> LeaseRow | None:
    """The lease that holds the node now, if any."""
    return session.scalar(select(LeaseRow).where(LeaseRow.node == node, LeaseRow.released_at.is_(None)))


def refuse_leased(session: Session, node: NodeRow, but: RunKey | None = None) -> None:
    """Raise NodeLeased if a run other than ``but`` holds the node."""
    lease = live_lease(session, node.name)
    if lease is not None and RunKey.of(lease) != but:
        raise NodeLeased(
            f"{node.name} is leased by run {lease.run_id} of {lease.dag_id}: wait for it, or end it in Airflow"
        )


def holds(session: Session, node: str, key: RunKey) -> bool:
    """Whether that run holds the node."""
    lease = live_lease(session, node)
    return lease is not None and RunKey.of(lease) == key


def move(session: Session, node: NodeRow, to: State, actor: str, reason: str, evidence: Evidence) -> None:
    """Move the node and write the event, within the caller's transaction. Raises IllegalMove naming the node."""
    current = State(node.state)
    try:
        lifecycle.check_move(current, to, evidence, shadow=node.shadow)
    except IllegalMove as error:
        raise IllegalMove(f"{node.name} stays in {current}: {error}", error.code) from None
    if current in BROKEN:
        node.repaired = last_stage(session, node)
    node.state = to
    if to in SERVING and current not in SERVING:
        begin_spell(session, node)
    node.shadow = evidence.adopted and to is State.PRODUCTION
    if to not in SERVING or evidence.person:
        node.held_run = ""
    if to is State.PRODUCTION:
        if evidence.person:
            accept(session, node)
        recheck(session, node.name)
    last = last_stage(session, node)
    write_event(session, node.name, current, to, actor, reason, evidence_json(evidence), last)
    if to not in SERVING:
        valid = (CertificateRow.node == node.name, unrevoked())
        why = f"the node left service: {reason}"
        ended = {"revoked": why, "revoked_at": now(), "revoked_after": last}
        session.execute(update(CertificateRow).where(*valid).values(**ended))
    follow_state(session, node, reason, by_person=bool(evidence.person), came_from=current)
    if evidence.run:
        # A run that has ended may still move its node: into production, or back when it lets go.
        over = RunRow.node == node.name, RunRow.ended_at.is_not(None)
        session.execute(update(RunRow).where(*of_run(evidence.run), *over).values(state_after=to))


def begin_spell(session: Session, node: NodeRow, *, by_person: bool = False) -> None:
    """Begin a new spell, when the node enters service or is verified in it. Of earlier observations, only those that no
    test has followed count in it, or none if ``by_person``: a person who saw them verified the node. What the node has
    now is what it must keep, and the entries that its BMC's logs hold at the next reading are not new.
    """
    untested = (
        (HealthRow.node == node.name) & (HealthRow.machine == node.machine) & (HealthRow.spell == node.spell),
        ~HealthRow.over, HealthRow.acted == "", HealthRow.action != HealthAction.NOTE,
        HealthRow.due_after == last_stage(session, node),
    )  # fmt: skip
    node.spell += 1
    if not by_person:
        session.execute(update(HealthRow).where(*untested).values(spell=node.spell))
    if (swept := session.get(SweepRow, node.name)) is not None:
        swept.counters = presence.forgotten(swept.counters)
    if (bmc := session.get(BmcRow, node.name)) is not None:
        bmc.logs, bmc.present, bmc.tried_at = [], [], None


def accept(session: Session, node: NodeRow) -> None:
    """Note that a person knows what is recorded of the node, and admits it."""
    node.accepted = last_stage(session, node)


def last_stage(session: Session, node: NodeRow) -> int:
    """The id of the last stage that is recorded of the node, 0 without one."""
    return session.scalar(select(func.max(StageRow.id)).where(StageRow.node == node.name)) or 0


def last_event(session: Session, node: NodeRow) -> int:
    """The id of the last event of the node, 0 without one."""
    return session.scalar(select(func.max(EventRow.id)).where(EventRow.node == node.name)) or 0


def recheck(session: Session, node: str, why: str = "") -> None:
    """Have the gate recheck the node at the end of this transaction (``decisions.admission.stand``).

    ``why``: what changed about a node in service, ``LESS`` if that can only end a hold; "" if the transaction moves
    the node there.
    """
    session.info.setdefault(RECHECK, {})[node] = why


def write_event(
    session: Session,
    node: str | None,
    before: State | str,
    after: State | str,
    actor: str,
    reason: str,
    evidence: Mapping[str, Any],
    last: int = 0,
) -> EventRow:
    """Append an event and return its row. ``last``: for a move, the id of the node's last stage."""
    event = EventRow(
        node=node, at=now(), from_state=before, to_state=after, actor=actor, login=acting.current(), reason=reason,
        evidence=dict(evidence), after=last,
    )  # fmt: skip
    session.add(event)
    session.flush()
    return event


def remark(
    session: Session, node: NodeRow, actor: str, reason: str, evidence: Mapping[str, Any] | None = None
) -> EventRow:
    """Append an event about a node whose state does not change, and return it."""
    state = State(node.state)
    return write_event(session, node.name, state, state, actor, reason, evidence or {})


def write_decision(session: Session, person: str, reason: str, what: str, evidence: Mapping[str, Any]) -> None:
    """Append the event of a person's decision that concerns no node. ``what``: what was done, as a clause."""
    decided = {"person": person, "reason": reason.strip(), **evidence}
    write_remark(session, person, f"{what}: {reason.strip()}", decided)


def write_remark(session: Session, actor: str, what: str, evidence: Mapping[str, Any]) -> None:
    """Append an event that concerns no node (``remark``: of one that does)."""
    write_event(session, None, "", "", actor, what, evidence)


def evidence_json(evidence: Evidence) -> dict[str, Any]:
    """The evidence as an event keeps it: only what is there."""
    stated = {field.name: getattr(evidence, field.name) for field in dataclasses.fields(evidence)}
    return {name: str(value) if isinstance(value, RunKey) else value for name, value in stated.items() if value}


def pause_of(row: NodeRow) -> Pause | None:
    """The node's pause, while it lasts."""
    if row.paused_until is None or row.paused_until <= now():
        return None
    return Pause(row.paused_by, row.paused_until, row.paused_for)


def lemon_of(row: NodeRow) -> Lemon | None:
    """The node's mark as a lemon, if it has one."""
    return None if row.lemon_since is None else Lemon(row.lemon_by, row.lemon_since, row.lemon_for)


def to_node(row: NodeRow) -> Node:
    """The node as a value."""
    return Node(
        name=row.name, host=row.host, port=row.port, user=row.user, host_key=row.host_key, sku=row.sku,
        state=State(row.state), launch=dict(row.launch), work_dir=row.work_dir, rack=row.rack, pool=row.pool,
        labels=dict(row.labels), simulated=row.simulated, added_at=row.added_at, contact_at=row.contact_at,
        inconclusive=row.inconclusive, machine_since=row.machine_since, shadow=row.shadow,
        held_run=RunKey.parse(row.held_run), bmc=dict(row.bmc), pause=pause_of(row), lemon=lemon_of(row),
        spell=row.spell,
    )  # fmt: skip


def to_lease(row: LeaseRow) -> Lease:
    """The lease as a value."""
    return Lease(row.node, row.dag_id, row.run_id, row.token, row.acquired_at)


def to_event(row: EventRow) -> Event:
    """The event as a value."""
    return Event(
        node=row.node, at=row.at, from_state=State(row.from_state), to_state=State(row.to_state), actor=row.actor,
        reason=row.reason, evidence=row.evidence, login=row.login,
    )  # fmt: skip


def first_job_at() -> ColumnElement[Any]:
    """When the first job of a ``RunRow`` of the enclosing query began, NULL if none has: a run that has begun may wait
    for a slot for weeks.
    """
    return select(func.min(JobRow.started_at)).where(JobRow.run == RunRow.id).correlate(RunRow).scalar_subquery()


def to_run(row: RunRow) -> Run:
    """The run as a value."""
    return Run(
        dag_id=row.dag_id, run_id=row.run_id, node=row.node, sku=row.sku, level=row.level, reason=row.reason,
        forced=row.forced, required_stages=tuple(row.required_stages), state_before=State(row.state_before),
        state_after=State(row.state_after) if row.state_after else None,
        verdict=Verdict(row.verdict) if row.verdict else None, headline=row.headline, simulated=row.simulated,
        started_at=row.started_at, ended_at=row.ended_at, why_held=row.why_held, started_by=row.started_by,
    )  # fmt: skip


VERDICT_COLUMNS = (
    "stage", "level", "verdict", "required", "measured", "judged", "reason", "recorded_at", "snapshot", "simulated",
    "attempts",
)  # fmt: skip
"""The columns of a stage that ``to_verdict`` reads; others hold lists of tens of kilobytes."""


def to_verdict(row: StageRow, run: RunRow) -> StageVerdict:
    """The stage's verdict as a value."""
    return StageVerdict(
        stage=row.stage, level=row.level, verdict=Verdict(row.verdict),
        full_coverage=row.required > 0 and row.required == row.measured == row.judged, reason=row.reason,
        recorded_at=row.recorded_at, dag_id=run.dag_id, run_id=run.run_id, snapshot=row.snapshot,
        simulated=row.simulated, attempts=row.attempts,
    )  # fmt: skip


def to_finding(row: FindingRow) -> Finding:
    """The finding as a value, with its id and the waiver that was valid when it was judged."""
    return Finding(
        rule=row.rule, metric=row.metric, device=row.device, severity=Severity(row.severity),
        fault_class=FaultClass(row.fault_class), action=Action(row.action), observed=row.observed,
        expected=row.expected, source=row.source, summary=row.summary, labels=to_labels(row.labels),
        confidence=row.confidence, id=row.finding_id, waived=row.waived, measurements=tuple(row.measurements),
        variant=Variant(row.variant), extent=Extent(**row.extent) if row.extent else None,
    )  # fmt: skip


def to_observation(row: MeasurementRow) -> Observation:
    """A judged measurement as a value."""
    return Observation(
        probe=row.probe, metric=row.metric, device=row.device, unit=row.unit, value=row.value, text=row.text,
        labels=to_labels(row.labels), samples=row.samples, spread=row.spread, floor=row.floor, ceiling=row.ceiling,
        source=row.source, ok=bool(row.ok), note=row.note,
    )  # fmt: skip


def to_labels(labels: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Labels as judgements have them: sorted pairs of texts."""
    return tuple(sorted((str(key), str(value)) for key, value in labels.items()))
