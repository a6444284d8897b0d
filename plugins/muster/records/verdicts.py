"""What stands of everything that was ever found on a node: verdicts, findings, approvals, the last pass."""

from __future__ import annotations

import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from muster.errors import IllegalMove
from muster.lifecycle.current import standing
from muster.lifecycle.transitions import State, is_person
from muster.records.database import access
from muster.records.database.engine import reading, writing
from muster.records.database.models import Event, FindingRow, Node, Run, StageRecord
from muster.records.fleet.suspects import suspects_on
from muster.records.values import ApprovalRecord, OpenFinding, StageVerdict
from muster.records.waivers import marked_now
from muster_criteria.model import Verdict


def latest_verdicts(node: str) -> list[StageVerdict]:
    """The verdicts that stand on the machine which bears the name now, of every stage, oldest first.

    Several of one stage may stand: a short one does not end a thorough one (``muster.lifecycle.current``).
    Raises UnknownNode.
    """
    with reading() as session:
        return [verdict for _, verdict in current_verdicts(session, access.node_row(session, node))]


def open_findings(node: str) -> list[OpenFinding]:
    """The findings behind the verdicts that stand on the node's machine, with the waivers of this moment on them.

    What once made a part that sits there a suspect stays open, whatever was tested since. Raises UnknownNode.
    """
    with reading() as session:
        row = access.node_row(session, node)
        stages = dict(current_verdicts(session, row))
        query = select(FindingRow).where(FindingRow.stage.in_(list(stages))).order_by(FindingRow.id)
        found = [(access.to_finding(each), stages[each.stage]) for each in session.scalars(query)]
        now_waived = marked_now(session, row, [finding for finding, _ in found])
        suspects = suspects_on(session, row)
    standing_ids = {finding.id for finding in now_waived}
    return [
        *(
            OpenFinding(finding, said.stage, said.dag_id, said.run_id, said.recorded_at)
            for finding, (_, said) in zip(now_waived, found, strict=True)
        ),
        *(each for each in suspects if each.finding.id not in standing_ids),
    ]


def last_passes() -> dict[str, datetime.datetime]:
    """{node: when a run of the machine that bears the name now last ended with PASS}; without those that never did."""
    query = (
        select(Run.node, func.max(Run.ended_at).label("at"))
        .join(Node, Node.name == Run.node)
        .where(Run.verdict == str(Verdict.PASS), Run.started_at >= Node.machine_since)
        .group_by(Run.node)
    )
    with reading() as session:
        return {row.node: row.at for row in session.execute(query)}


def record_approval(
    node: str, person: str, option: str, reason: str, *, link: str = "", dag_id: str = "", run_id: str = ""
) -> ApprovalRecord:
    """Write down what a person chose when asked about the node; like every event it cannot be rewritten.

    It moves nothing: that is ``move_node``'s, with this person as evidence. Raises IllegalMove if ``person`` is nobody
    in particular or gives no reason, UnknownNode.
    """
    if not is_person(person) or not reason.strip():
        raise IllegalMove(f"nothing is approved for {node}: that needs a named person and a reason")
    with writing() as session:
        state = State(access.node_row(session, node).state)
        said = {"approval": option, "person": person, "reason": reason.strip(), "link": link,
                "run": f"{dag_id}/{run_id}" if run_id else ""}  # fmt: skip
        access.write_event(session, node, state, state, person, f"chose {option!r}: {reason.strip()}", said)
    return approvals(node)[-1]


def record_unanswered(node: str, sentence: str, dag_id: str, run_id: str) -> None:
    """Write down that a person was asked about the node and did not answer; moves nothing. Raises UnknownNode."""
    with writing() as session:
        state = State(access.node_row(session, node).state)
        access.write_event(session, node, state, state, "muster", sentence, {"unanswered": f"{dag_id}/{run_id}"})


def approvals(node: str) -> list[ApprovalRecord]:
    """What people chose about the node, oldest first. Raises UnknownNode."""
    with reading() as session:
        access.node_row(session, node)
        events = list(session.scalars(select(Event).where(Event.node == node).order_by(Event.id)))
    return [
        ApprovalRecord(node, event.at, said["person"], said["approval"], said["reason"], said["link"], said["run"])
        for event in events
        if "approval" in (said := event.evidence)
    ]


def current_verdicts(session: Session, node: Node) -> list[tuple[int, StageVerdict]]:
    """(id of the stage's row, verdict) of all that stand, oldest first."""
    query = (
        select(StageRecord, Run)
        .join(Run, StageRecord.run == Run.id)
        .where(Run.node == node.name, Run.started_at >= node.machine_since, StageRecord.current)
        .order_by(StageRecord.recorded_at, StageRecord.id)
    )
    ids = {
        StageVerdict(
            stage.stage, stage.level, Verdict(stage.verdict),
            stage.required > 0 and stage.required == stage.measured == stage.judged,
            stage.reason, stage.recorded_at, run.dag_id, run.run_id, stage.snapshot,
        ): stage.id
        for stage, run in session.execute(query)
    }  # fmt: skip
    return [(ids[verdict], verdict) for verdict in standing(ids)]
