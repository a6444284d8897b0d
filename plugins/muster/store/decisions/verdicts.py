"""What is current on a node: verdicts, findings, approvals, the last pass."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Select, Text, case, column, func, select, true, values
from sqlalchemy.orm import InstrumentedAttribute, Session

from muster.model.events import Approval
from muster.model.runs import OpenFinding, RunKey, StageVerdict
from muster.model.stages import STAGES
from muster.rules.lifecycle.decisions import check_decision
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, FindingRow, NodeRow, RunRow, StageRow
from muster.store.decisions.current import PRESENT, current_verdicts
from muster.store.decisions.waivers import marked_now
from muster.store.fleet.suspects import suspects_on
from muster_criteria.model import Verdict

_OWN = values(column("stage", Text), name="own").data([(stage,) for stage in STAGES]).cte("own")
"""The stages that test a single node, without those of blocks."""


def latest(node: str) -> list[StageVerdict]:
    """The current verdicts on the node's machine, of every stage, oldest first.

    A stage may have several: a short test does not supersede a thorough one (``muster.rules.lifecycle.current``).
    Raises UnknownNode.
    """
    with reading() as session:
        return [verdict for _, verdict in current_verdicts(session, access.node_row(session, node))]


def open_findings(node: str) -> list[OpenFinding]:
    """The findings of the current verdicts on the node's machine, with the waivers that are valid now.

    Findings that made one of its parts a suspect stay open. Raises UnknownNode.
    """
    with reading() as session:
        return findings_now(session, access.node_row(session, node))


def findings_now(
    session: Session, row: NodeRow, verdicts: Iterable[tuple[int, StageVerdict]] | None = None
) -> list[OpenFinding]:
    """``open_findings`` within the caller's transaction. ``verdicts``: ``current_verdicts``, if the caller has them."""
    stages = dict(current_verdicts(session, row) if verdicts is None else verdicts)
    query = select(FindingRow).where(FindingRow.stage.in_(list(stages))).order_by(FindingRow.id)
    found = [(access.to_finding(each), stages[each.stage]) for each in session.scalars(query)]
    now_waived = marked_now(session, row, [finding for finding, _ in found])
    current_ids = {finding.id for finding in now_waived}
    return [
        *(
            OpenFinding(finding, verdict.stage, verdict.dag_id, verdict.run_id, verdict.recorded_at)
            for finding, (_, verdict) in zip(now_waived, found, strict=True)
        ),
        *(each for each in suspects_on(session, row) if each.finding.id not in current_ids),
    ]


def stage_tests() -> dict[str, dict[str, datetime.datetime]]:
    """{node: {stage: when it was last tested on the present machine}}, without those that never were.

    A test that a wrong clock dated in the future does not count until then: it would look fresh for that long.
    """
    return _last_tests(StageRow.recorded_at, StageRow.recorded_at <= access.now())


def stage_numbers() -> dict[str, dict[str, int]]:
    """As ``stage_tests``, with the sequence number of each test instead of its time: clocks may be wrong."""
    return _last_tests(StageRow.origin)


def last_tested(*kinds: Collection[str], until: datetime.datetime) -> Select[*tuple[Any, ...]]:
    """A query of each node, the time of its last test by ``until`` for each of ``kinds``, and "any".

    ``kinds``: sets of verdicts that count as a test. The time is that of the stage tested longest ago, since a short
    test says nothing about the others; NULL if some stage was never tested. "any": the last test of any stage, by the
    last of ``kinds``.
    """
    known = StageRow.recorded_at <= until
    last = (_last(StageRow.recorded_at, kind, known).label(f"kind_{place}") for place, kind in enumerate(kinds))
    of_stage = select(NodeRow.name, *last).join(_OWN, true())
    # Materialised: otherwise PostgreSQL would look up the same test at each use of its time below.
    node, *kind = of_stage.cte("of_stage").prefix_with("MATERIALIZED").c
    oldest = (case((func.count(at) == len(STAGES), func.min(at))) for at in kind)
    return select(node, *oldest, func.max(kind[-1]).label("any")).group_by(node)


def _last_tests(what: InstrumentedAttribute[Any], *which: ColumnElement[bool]) -> dict[str, dict[str, Any]]:
    """{node: {stage: ``what`` of its last test}}, for tests that match ``which``; without untested stages."""
    last = _last(what, access.SOUND, *which).label("last")
    found: dict[str, dict[str, Any]] = {}
    with reading() as session:
        for node, stage, value in session.execute(select(NodeRow.name, _OWN.c.stage, last).join(_OWN, true())):
            if value is not None:
                found.setdefault(node, {})[stage] = value
    return found


def _last(
    what: InstrumentedAttribute[Any], verdicts: Collection[str], *which: ColumnElement[bool]
) -> ScalarSelect[Any]:
    """The column ``what`` of the last test of each node and stage of the enclosing query.

    Only stages with one of ``verdicts`` that match ``which`` count, in a run that did not end SKIPPED: a preempted test
    leaves its node as due as it was. The last one is found by an index, so that the cost does not grow with the node's
    age.
    """
    skipped = select(RunRow.id).where(RunRow.id == StageRow.run, RunRow.verdict == Verdict.SKIPPED).exists()
    return (
        select(what)
        .where(PRESENT, StageRow.stage == _OWN.c.stage, StageRow.current, StageRow.verdict.in_(verdicts), *which)
        .where(~skipped)
        .order_by(StageRow.origin.desc())
        .limit(1)
        .correlate(NodeRow, _OWN)
        .scalar_subquery()
    )


def record_approval(
    node: str, person: str, option: str, reason: str, *, link: str = "", run: RunKey | None = None
) -> Approval:
    """Store a person's decision about the node as an event; this does not move the node (see ``nodes.move``).

    Raises NoPerson without a named person and a reason, UnknownNode.
    """
    check_decision(person, reason, f"nothing is approved for {node}")
    with writing() as session:
        row = access.node_row(session, node)
        of, reason = str(run or ""), reason.strip()
        evidence = {"approval": option, "person": person, "reason": reason, "link": link, "run": of}
        event = access.remark(session, row, person, f"chose {option!r}: {reason}", evidence)
        return Approval(node, event.at, person, option, reason, link, of, event.login)


def record_unanswered(node: str, sentence: str, key: RunKey) -> None:
    """Store that a person did not answer a question about the node. Raises UnknownNode."""
    with writing() as session:
        access.remark(session, access.node_row(session, node), "muster", sentence, {"unanswered": str(key)})


def approvals(node: str) -> list[Approval]:
    """People's decisions about the node, oldest first. Raises UnknownNode."""
    with reading() as session:
        access.node_row(session, node)
        events = list(session.scalars(select(EventRow).where(EventRow.node == node).order_by(EventRow.id)))
    return [
        Approval(
            node,
            event.at,
            evidence["person"],
            evidence["approval"],
            evidence["reason"],
            evidence["link"],
            evidence["run"],
            event.login,
        )
        for event in events
        if "approval" in (evidence := event.evidence)
    ]
