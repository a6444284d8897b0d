"""Runs from begin to end, their jobs, and what a run proves about its node."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Collection, Sequence

from sqlalchemy import ScalarSelect, func, select, update
from sqlalchemy.orm import Session, aliased

from muster.errors import IllegalMove, LeaseLost, Overtaken, Refusal
from muster.model.events import Evidence
from muster.model.nodes import Node
from muster.model.runs import Job, Run, RunKey, StageVerdict
from muster.model.stages import STAGES, all_of, in_order
from muster.model.states import BROKEN, SERVING, State
from muster.rules.lifecycle import ending
from muster.rules.lifecycle import transitions as lifecycle
from muster.settings import settings
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import JobRow, LeaseRow, NodeRow, RunRow, StageRow
from muster.store.database.outgoing import PlaceRow
from muster.store.database.wanted import follow_state
from muster.store.decisions import admission, certificates, waivers, withdrawals
from muster.store.decisions.current import current_verdicts
from muster.store.fleet.suspects import suspects_on
from muster.store.testing import common_causes
from muster_criteria.model import Severity, Verdict

RECENT = 20
"""Number of latest runs whose median is the typical duration."""
READ = 10 * RECENT
"""Number of latest runs that are searched for those with the same stages."""


def begin(
    key: RunKey,
    node: str,
    level: str,
    reason: str,
    forced: str | None = None,
    *,
    started_by: str = "",
    required_stages: Sequence[str] = STAGES,
    run_after: datetime.datetime | None = None,
) -> Run:
    """Record that a run begins on a node. If it was recorded already, that record is used again, without what it
    measured before a repair.

    A DAG run that tests several nodes begins once for each of them. ``forced`` is the person's reason to overrule the
    in-use guard, ``started_by`` the login that started the run. ``required_stages``: those that a full-coverage pass
    needs. ``run_after``: that of Airflow's run. Raises as ``check_same``, and IllegalMove if the node is in a state
    from which no test may take it.
    """
    with writing() as session:
        row = access.node_row(session, node)
        state = State(row.state)
        run = _begun(session, key, row, run_after)
        if state in (*BROKEN, State.RETIRED):  # a cleared run would lose its passes there
            when = "if it comes back" if state is State.RETIRED else "after a repair"
            raise IllegalMove(
                f"{node} is in {state} and is not tested there; {when}, "
                f"`muster node move {node} registered --reason …`",
                Refusal.STATE,
            )
        if run is None:
            run = RunRow(
                dag_id=key.dag_id, run_id=key.run_id, node=node, sku=row.sku, level=level, reason=reason, forced=forced,
                started_by=started_by, required_stages=list(required_stages), state_before=state, machine=row.machine,
                simulated=row.simulated, run_after=run_after, started_at=access.now(),
            )  # fmt: skip
            session.add(run)
            session.flush()
        else:
            # What it measured before the node's repair is superseded; a FAIL stays until its stage is measured again.
            old = update(StageRow).where(StageRow.run == run.id, StageRow.current, StageRow.id <= row.repaired)
            session.execute(old.where(StageRow.verdict != Verdict.FAIL).values(current=False))
        return access.to_run(run)


def check_same(key: RunKey, node: str, run_after: datetime.datetime | None) -> None:
    """Raise IllegalMove if another run with that id is recorded, or the run tested another machine of that name.

    Otherwise the recorded run would end this one before it has measured anything. Raises UnknownNode.
    """
    with reading() as session:
        _begun(session, key, access.node_row(session, node), run_after)


def _begun(session: Session, key: RunKey, node: NodeRow, run_after: datetime.datetime | None) -> RunRow | None:
    """The run's row of that node, None if it has not begun there. Raises as ``check_same``."""
    rows = {row.node: row for row in session.scalars(select(RunRow).where(*access.of_run(key)))}
    for row in rows.values():
        access.refuse_another(row, run_after, row.started_at)
    run = rows.get(node.name)
    if run is not None and run.machine != node.machine:
        raise IllegalMove(
            f"run {key.run_id} of {key.dag_id} tested the machine that was {node.name} before: start one with another "
            "reason",
            Refusal.ANOTHER_RUN,
        )
    return run


def begin_stage(key: RunKey, stage: str, *, node: str = "") -> Node:
    """Move the run's node into the state in which ``stage`` runs, if it is not there yet, and return it.

    A node in shadow mode stays in service. ``node``: which one, if the run tests several. This reopens a run that was
    cleared after its end. Raises LeaseLost if the run does not hold the node, IllegalMove if the stage cannot follow
    the node's state (quarantined since, earlier stages missing).
    """
    with writing() as session:
        run = access.run_row(session, key, node)
        row = access.node_row(session, run.node, lock=True)
        require_lease(session, run)
        done = frozenset(summary.stage for summary in _stages(session, run))
        evidence = Evidence(run=key)
        if run.ended_at is not None:
            run.state_before = row.state  # a test that is not made returns the node to this state
        for state in lifecycle.path_to_stage(stage, State(row.state), done, shadow=row.shadow):
            access.move(session, row, state, "muster", f"stage {stage} of run {key.run_id}", evidence)
        run.ended_at, run.verdict, run.headline, run.state_after, run.why_held = None, None, "", None, ""
        run.reported_at = None
        return access.to_node(row)


def finish(key: RunKey, verdict: Verdict, headline: str, *, node: str = "") -> Run:
    """Close a run with its verdict, and move its node accordingly, in one transaction.

    The moves are those of ``transitions.closing``: qualified on PASS, WARN or PROVISIONAL, quarantine on FAIL,
    registered on INCONCLUSIVE, and triage on the third of these in a row; a node in service then stays there, unless
    the run found something (``ending.RunFacts.nothing_new``). A node in shadow mode stays, and a full-coverage PASS of
    every stage, at the level that admission asks for, ends its shadow mode. While the circuit breaker is open, a
    verdict that would take the node out of service is held: the node keeps serving, marked. So is a FAIL for a cause
    common to nodes of its rack or image; a node out of service becomes registered again. The node moves only if the run
    holds it. The same verdict again changes nothing. ``node``: if the run tests several. Raises UnknownRun.
    """
    with writing() as session:
        run = access.run_row(session, key, node)
        row = access.node_row(session, run.node, lock=True)
        session.refresh(run)
        if run.ended_at is not None and run.verdict == verdict:
            return access.to_run(run)
        run.verdict, run.headline, run.ended_at = str(verdict), headline, max(access.now(), run.started_at)
        run.reported_at = None
        run.ended_place = access.last_stage(session, row)
        session.flush()
        if access.holds(session, row.name, key):
            close(session, run, row, verdict)
        run.state_after = row.state
        return access.to_run(run)


def get(key: RunKey, *, node: str = "") -> Run:
    """The run, of ``node`` if it tests several. Raises UnknownRun."""
    with reading() as session:
        return access.to_run(access.run_row(session, key, node))


def by_id(run_id: str, *, node: str = "") -> Run:
    """The run with that id, or ``DAG/RUN``, for ``node`` if it tests several. Raises UnknownRun."""
    with reading() as session:
        return access.to_run(access.run_row(session, access.key_of(session, run_id), node))


def find(
    *,
    node: str = "",
    run: RunKey | None = None,
    limit: int | None = None,
    this_machine: bool = False,
) -> list[Run]:
    """Runs, latest first, at most ``limit``. ``node``, ``run``: of these; ``this_machine``: of present machines."""
    query = select(RunRow).order_by(RunRow.id.desc()).limit(limit)
    if run:
        query = query.where(*access.of_run(run))
    if node:
        query = query.where(RunRow.node == node)
    if this_machine:
        query = query.join(NodeRow, NodeRow.name == RunRow.node).where(RunRow.machine == NodeRow.machine)
    with reading() as session:
        return [access.to_run(row) for row in session.scalars(query)]


def last_run_id() -> ScalarSelect[int]:
    """The id of the last run of each ``NodeRow`` in the enclosing query: of its present machine, ended, not SKIPPED.

    A skipped run measured nothing, so it hides no earlier verdict.
    """
    found = aliased(RunRow)
    return (
        select(found.id)
        .where(found.node == NodeRow.name, found.machine == NodeRow.machine)
        .where(found.ended_at.is_not(None), found.verdict != Verdict.SKIPPED)
        .order_by(found.ended_place.desc(), found.id.desc())
        .limit(1)
        .correlate(NodeRow)
        .scalar_subquery()
    )


def last(node: str) -> Run | None:
    """The node's last run (``last_run_id``), None without one."""
    query = (
        select(RunRow)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(NodeRow.name == node, RunRow.id == last_run_id())
    )
    with reading() as session:
        row = session.scalar(query)
        return access.to_run(row) if row is not None else None


def typical_duration_s(
    sku: str, level: str, dag_id: str, *, simulated: bool, stages: Sequence[str] = ()
) -> float | None:
    """Median time (s) from the first job to the end of the latest such runs with exactly these required stages (empty:
    all of the DAG's), if their verdict is PASS, WARN or PROVISIONAL. None if there is none.
    """
    ended = select(access.first_job_at().label("began"), RunRow.ended_at, RunRow.required_stages).where(
        RunRow.sku == sku,
        RunRow.level == level,
        RunRow.dag_id == dag_id,
        RunRow.simulated == simulated,
        RunRow.ended_at.is_not(None),
        RunRow.verdict.in_(access.SOUND),
    )
    with reading() as session:
        rows = list(session.execute(ended.order_by(RunRow.id.desc()).limit(READ)))
    like = [row for row in rows if row.began is not None and set(row.required_stages) == {*(stages or all_of(dag_id))}]
    took = [(row.ended_at - row.began).total_seconds() for row in like]
    return statistics.median(took[:RECENT]) if took else None


def stages(key: RunKey, *, node: str = "") -> list[StageVerdict]:
    """The current verdict of each judged stage, in the order of the node's life. Raises UnknownRun."""
    with reading() as session:
        return _stages(session, access.run_row(session, key, node))


def record_job(job: Job, *, only_from: Collection[str] = ()) -> None:
    """Store a job or its new state, keyed by run, stage and attempt. Raises UnknownRun.

    ``only_from``: raises Overtaken if the job is no longer in one of these states.
    """
    with writing() as session:
        run = access.run_row(session, job.key, job.node)
        row = _job(session, run, job.stage, job.attempt_key, lock=bool(only_from))
        if row is not None and only_from and row.state not in only_from:
            raise Overtaken(f"the job of {job.stage} was {row.state} before this process started it on the node")
        if row is None:
            row = JobRow(run=run.id, stage=job.stage, attempt_key=job.attempt_key)
            session.add(row)
        for name in ("state", "remote_dir", "boot_id", "fence", "started_at", "ended_at", "note", "chassis", "work"):
            setattr(row, name, getattr(job, name))
        row.repeat_probes = list(job.repeat_probes)


def change_job(job: Job, **columns: object) -> None:
    """Change only these columns of a job, whose state may have changed since it was read. Raises UnknownRun."""
    with writing() as session:
        row = _job(session, access.run_row(session, job.key, job.node), job.stage, job.attempt_key)
        for name, value in columns.items() if row is not None else ():
            setattr(row, name, value)


def get_job(key: RunKey, stage: str, attempt_key: str | None = None, *, node: str = "") -> Job | None:
    """The job of that stage and attempt (without one: the latest), or None. Raises UnknownRun."""
    with reading() as session:
        run = access.run_row(session, key, node)
        row = _job(session, run, stage, attempt_key)
        return to_job(run, row) if row else None


def find_jobs(key: RunKey | None, states: Collection[str], *, node: str = "") -> list[Job]:
    """The jobs of a run, or of all, in these states, over all stages and attempts, of ``node`` if it tests several."""
    of = (*(access.of_run(key) if key else ()), *((RunRow.node == node,) if node else ()))
    query = select(RunRow, JobRow).join(JobRow, JobRow.run == RunRow.id).where(*of, JobRow.state.in_(sorted(states)))
    with reading() as session:
        return [to_job(run, row) for run, row in session.execute(query.order_by(JobRow.id))]


def obstacles() -> dict[str, str]:
    """{node: why the last attempt of the run that holds it could not reach it}, without nodes that were reached."""
    latest = select(func.max(JobRow.id)).join(RunRow, JobRow.run == RunRow.id)
    latest = latest.join(LeaseRow, (LeaseRow.dag_id == RunRow.dag_id) & (LeaseRow.run_id == RunRow.run_id))
    latest = latest.where(LeaseRow.released_at.is_(None), LeaseRow.node == RunRow.node).group_by(RunRow.id)
    query = select(RunRow.node, JobRow.note).join(RunRow, JobRow.run == RunRow.id)
    query = query.where(JobRow.id.in_(latest), JobRow.note != "", JobRow.ended_at.is_(None))
    with reading() as session:
        return {row.node: row.note for row in session.execute(query)}


def to_job(run: RunRow, row: JobRow) -> Job:
    """The job as a value."""
    return Job(
        dag_id=run.dag_id, run_id=run.run_id, node=run.node, stage=row.stage, attempt_key=row.attempt_key,
        state=row.state, remote_dir=row.remote_dir, boot_id=row.boot_id, fence=row.fence, started_at=row.started_at,
        ended_at=row.ended_at, chassis=row.chassis, note=row.note, work=row.work,
        repeat_probes=tuple(row.repeat_probes),
    )  # fmt: skip


def require_lease(session: Session, run: RunRow) -> None:
    """Raise LeaseLost unless the run holds its node: a run that lost its lease can do nothing."""
    if not access.holds(session, run.node, run.key):
        raise LeaseLost(f"run {run.run_id} of {run.dag_id} does not hold {run.node} (any more); clear it to start over")


def attested(session: Session, node: NodeRow, claimed: Evidence) -> Evidence:
    """``claimed`` with everything about the run replaced by what is recorded (``rules.ending.attested``)."""
    key = claimed.run
    if key is None or not access.holds(session, node.name, key):
        return ending.attested(claimed, None)
    run = session.scalar(select(RunRow).where(*access.of_run(key), RunRow.node == node.name))
    return ending.attested(claimed, _facts(session, run, node) if run is not None else None)


def close(session: Session, run: RunRow, node: NodeRow, verdict: Verdict) -> Evidence:
    """Move the node as the end of the run decides (``rules.ending``); returns the evidence for it.

    The caller must have locked the node.
    """
    facts = _facts(session, run, node)
    current = facts.node.state
    end, full = ending.end_of_run(facts, verdict, settings().admission_level)
    breaker = None
    if end.withdraws(current):
        breaker = withdrawals.breaker_now(session, simulated=node.simulated, deciding=True)
    found = common_causes.findings_of_run(session, run) if verdict is Verdict.FAIL else []
    end, shared = ending.hold_back(end, current, verdict, breaker, [finding for _, finding in found])
    if shared:
        common_causes.note_shared_cause(session, run, found)
    evidence = Evidence(
        run=run.key,
        run_over=verdict in (Verdict.INCONCLUSIVE, Verdict.SKIPPED),
        verdict=verdict,
        full_coverage=full,
        budget_spent=State.TRIAGE in end.path,
        held=bool(end.why_held or facts.still_held(RunKey.parse(node.held_run))),
        nothing_new=facts.nothing_new(verdict),
    )
    for state in end.path:
        access.move(session, node, state, "muster", f"{end.reason}: {run.headline}", evidence)
    if State.PRODUCTION in end.path and verdict is not Verdict.INCONCLUSIVE:
        certificates.issue(session, node, "muster", evidence, whole=set(STAGES) <= set(run.required_stages))
    node.inconclusive = end.inconclusive
    serves = State(node.state) in SERVING
    held = evidence.run if end.why_held else facts.still_held(RunKey.parse(node.held_run))
    run.why_held, node.held_run = end.why_held, str(held) if held and serves else ""
    if end.verified:
        leave_shadow(session, node, "muster", f"{end.reason}: {run.headline}", evidence)
    return evidence


def _facts(session: Session, run: RunRow, node: NodeRow) -> ending.RunFacts:
    found = [finding for _, finding in common_causes.findings_of_run(session, run)]
    place = session.get(PlaceRow, node.name)
    current = select(StageRow.id).where(StageRow.run == run.id, StageRow.current)
    accepted = waivers.accepted(session, node, found)
    return ending.RunFacts(
        run=access.to_run(run),
        node=access.to_node(node),
        stages=_stages(session, run),
        verdicts=[verdict for _, verdict in current_verdicts(session, node)],
        suspect=not all(each.finding.waived for each in suspects_on(session, node)),
        accepted=accepted,
        clean=accepted or all(finding.severity is Severity.INFO for finding in found),
        blameless=bool(session.scalar(select(current.where(access.BLAMELESS).exists()))),
        other_machine=bool(session.scalar(select(current.where(StageRow.job_end == access.OTHER_MACHINE).exists()))),
        preempted=place is not None and place.preempted,
        against=admission.against_service(session, node),
    )


def leave_shadow(session: Session, node: NodeRow, actor: str, reason: str, evidence: Evidence) -> None:
    """End the node's shadow mode, with its event: from here on it is treated like every other node in production."""
    node.shadow = False
    access.begin_spell(session, node, by_person=bool(evidence.person))
    if evidence.person:
        access.accept(session, node)
    access.recheck(session, node.name)
    proof = {**access.evidence_json(evidence), "verified": True}
    access.remark(session, node, actor, f"out of shadow mode: {reason}", proof)
    follow_state(session, node, reason, by_person=bool(evidence.person))
    certificates.issue(session, node, actor, evidence)


def _job(session: Session, run: RunRow, stage: str, attempt_key: str | None, *, lock: bool = False) -> JobRow | None:
    query = select(JobRow).where(JobRow.run == run.id, JobRow.stage == stage).order_by(JobRow.id.desc()).limit(1)
    query = query.with_for_update() if lock else query
    return session.scalar(query if attempt_key is None else query.where(JobRow.attempt_key == attempt_key))


def _stages(session: Session, run: RunRow) -> list[StageVerdict]:
    rows = session.scalars(select(StageRow).where(StageRow.run == run.id, StageRow.current))
    found = {row.stage: access.to_verdict(row, run) for row in rows}
    return [found[stage] for stage in in_order(found)]
