"""The gate to production: each move into production asks it, in the transaction that makes the move."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.errors import IllegalMove, Refusal
from muster.model.events import Evidence
from muster.model.runs import OpenFinding, RunKey, StageVerdict
from muster.model.states import SERVING, State
from muster.rules.lifecycle import gate
from muster.rules.lifecycle.current import INCONCLUSIVE
from muster.rules.lifecycle.gate import Admit, Decision, NeedsPerson, Refuse
from muster.rules.service import lemons
from muster.rules.service.spares import PERIOD
from muster.settings import settings
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.fabric import RackRow
from muster.store.database.models import NodeRow, RunRow, StageRow
from muster.store.database.outgoing import PlaceRow
from muster.store.decisions import certificates, incidents
from muster.store.decisions.current import current_verdicts
from muster.store.decisions.verdicts import findings_now
from muster.store.decisions.waivers import standing
from muster.store.fleet import failures
from muster_criteria.context import waivers
from muster_criteria.model import Severity, Verdict

_UNJUDGED = (*INCONCLUSIVE, Verdict.PROVISIONAL)


def decision(node: str) -> Decision:
    """The gate's decision on the node by the current records. Raises UnknownNode."""
    with reading() as session:
        return decide(session, access.node_row(session, node))


def decide(session: Session, row: NodeRow) -> Decision:
    """``decision`` within the caller's transaction."""
    held, chosen = standing(session, row), settings()
    verdicts = current_verdicts(session, row)
    findings = findings_now(session, row, verdicts)
    decision = gate.decide(
        access.to_node(row),
        [verdict for _, verdict in verdicts],
        findings,
        [each for each in held.waivers if waivers.concerns(each, held.machine)],
        limits=gate.Limits(datetime.timedelta(hours=chosen.admission_max_age_hours), chosen.admission_level),
        now=held.moment,
        kept=_known_until(session, row, row.kept, [*(each for _, each in verdicts), *findings]),
        unproved=incidents.unproved(session, row, verdicts),
        fails_again=_fails_again(session, row, held.moment),
        rack_held=rack_held(session, row),
    )
    enters = isinstance(decision, Admit) and row.state != State.PRODUCTION
    place = session.get(PlaceRow, row.name) if enters else None
    if place is not None and place.held_since is not None:
        since = certificates.tested_since(session, row)
        if since is None or since <= place.held_since:
            look = f"{place.cluster} may show why it was closed since"
            return NeedsPerson((f"its records were restored from a back-up after it was tested: {look}",))
    if enters and certificates.passed_before_change(session, row):
        return NeedsPerson(("some of its stages passed with another part, driver or firmware than it has now",))
    return decision


def rack_held(session: Session, row: NodeRow) -> str:
    """Why the node's rack is held, "" if it is not."""
    query = select(RackRow).where(RackRow.rack == row.rack, RackRow.simulated == row.simulated)
    found = session.scalar(query.where(RackRow.released_at.is_(None))) if row.rack else None
    return f"rack {row.rack} is held for a person: {found.why}" if found else ""


def _fails_again(session: Session, row: NodeRow, now: datetime.datetime) -> str:
    limit = settings().lemon_score
    if not limit:
        return ""
    return lemons.reason(failures.within(session, now - PERIOD, row.name), now, limit)


def against_service(session: Session, row: NodeRow, *, held_too: bool = False) -> tuple[str, ...]:
    """The reasons to take a serving node out of service, () for other nodes. Leaves out what the person who admitted or
    kept it knew and, unless ``held_too``, what is held.
    """
    if State(row.state) not in SERVING:
        return ()
    current = current_verdicts(session, row)
    verdicts, findings = [each for _, each in current], findings_now(session, row, current)
    known: list[StageVerdict | OpenFinding] = [*verdicts, *findings]
    of_held = {stage for stage in map(gate.stage_of, known) if f"{stage[1]}/{stage[2]}" == row.held_run}
    held = frozenset() if held_too else of_held
    accepted, kept = (_known_until(session, row, last, known) for last in (row.accepted, row.kept))
    return gate.against(verdicts, findings, accepted=accepted | kept | held, kept=kept | held)


def _known_until(
    session: Session, row: NodeRow, last: int, known: Sequence[StageVerdict | OpenFinding]
) -> frozenset[gate.Stage]:
    """The stages of ``known`` (verdicts and findings) that were recorded up to the row with id ``last``."""
    if not (last and known):
        return frozenset()
    query = (
        select(StageRow.stage, RunRow.dag_id, RunRow.run_id)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(RunRow.node == row.name, StageRow.current, StageRow.id <= last)
        .where(RunRow.run_id.in_({each.run_id for each in known}))
    )
    return frozenset((each.stage, each.dag_id, each.run_id) for each in session.execute(query))


def stand(session: Session) -> None:
    """Apply the gate at the end of each transaction that moves nodes into production or changes their evidence.

    A node that the gate refuses does not enter, unless a verdict on it is held. One that already serves, as when a
    waiver ends, is held for a person to decide, until nothing stands against it. An open critical finding that is not
    waived revokes the certificates. Raises IllegalMove.
    """
    asked: dict[str, str] = session.info.pop(access.RECHECK, {})
    for name, why in asked.items():
        row = access.node_row(session, name)
        if why == access.LESS:
            if _held_for_findings(session, row) and not against_service(session, row, held_too=True):
                text = "its verdict is held no more: nothing stands against it"
                access.remark(session, row, "muster", text, {"kept": row.held_run})
                row.held_run = ""
        elif State(row.state) is State.PRODUCTION and not row.shadow and not row.held_run:
            decision = decide(session, row)
            if isinstance(decision, Refuse) and why:
                _hold(session, row, why)
            elif isinstance(decision, Refuse):
                check(name, decision, Evidence())
        critical = [each.finding for each in findings_now(session, row) if each.finding.severity is Severity.CRITICAL]
        if found := next((each for each in critical if not each.waived), None):
            certificates.revoke(session, row, f"open finding {found.id}: {found.summary}")
    session.flush()


def _held_for_findings(session: Session, row: NodeRow) -> bool:
    """Whether the held verdict rests on findings, rather than on a test that could not judge the node."""
    key = RunKey.parse(row.held_run)
    query = select(RunRow.verdict).where(RunRow.node == row.name)
    return key is not None and session.scalar(query.where(*access.of_run(key))) not in _UNJUDGED


def _hold(session: Session, row: NodeRow, why: str) -> None:
    """Hold the first verdict that stands against the node, so that a person is asked about it."""
    failed = [each for _, each in current_verdicts(session, row) if each.verdict is Verdict.FAIL]
    found = [each for each in findings_now(session, row) if each.finding.severity is Severity.CRITICAL]
    known: list[StageVerdict | OpenFinding] = [*failed, *found]
    own = select(RunRow).where(RunRow.node == row.name)
    runs = [
        (stage, run)
        for stage, dag_id, run_id in map(gate.stage_of, known)
        if (run := session.scalar(own.where(*access.of_run(RunKey(dag_id, run_id)))))
    ]
    if not runs and known and (last := session.scalar(own.order_by(RunRow.id.desc()).limit(1))):
        runs = [(known[0].stage, last)]  # a suspect part came from another node
    for stage, run in runs[:1]:
        row.held_run, run.why_held = str(run.key), why
        evidence = {"held": row.held_run, "stage": stage}
        access.remark(session, row, "muster", f"its verdict is held: {why}", evidence)


def check(node: str, decision: Decision, evidence: Evidence) -> None:
    """Raise IllegalMove if the gate refuses the node, or if it asks for a person and none decides."""
    if isinstance(decision, Refuse) or not (evidence.person or isinstance(decision, Admit)):
        raise IllegalMove(f"{node} does not enter production: {'; '.join(decision.reasons)}", Refusal.GATE)
