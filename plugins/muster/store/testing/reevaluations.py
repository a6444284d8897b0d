"""PROVISIONAL verdicts, and their replacement once peers can be compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import select

from muster.model.runs import Run, StageVerdict
from muster.model.states import State
from muster.rules import reevaluation
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import LeaseRow, NodeRow, RunRow, StageRow
from muster.store.decisions import certificates
from muster.store.decisions.verdicts import current_verdicts
from muster.store.testing.runs import close
from muster.store.testing.stages import supersede
from muster_criteria.model import Judgement, Verdict

if TYPE_CHECKING:
    from muster_criteria.measured import StageResult


def provisional() -> dict[str, list[StageVerdict]]:
    """{node: its current PROVISIONAL verdicts} of the nodes whose verdicts may be re-evaluated now.

    Those are the nodes that are qualified or serve, and that no run holds.
    """
    provisional = (
        select(RunRow.node)
        .join(StageRow, StageRow.run == RunRow.id)
        .where(StageRow.current, StageRow.verdict == str(Verdict.PROVISIONAL))
    )
    states = [str(state) for state in reevaluation.STATES]
    nodes = select(NodeRow).where(NodeRow.state.in_(states), NodeRow.name.in_(provisional)).order_by(NodeRow.name)
    with reading() as session:
        rows = list(session.scalars(nodes))
        verdicts = {row.name: [verdict for _, verdict in current_verdicts(session, row)] for row in rows}
        leased = set(session.scalars(select(LeaseRow.node).where(LeaseRow.released_at.is_(None))))
        return reevaluation.waiting([access.to_node(row) for row in rows], verdicts, leased)


def record(run: Run, judged: Sequence[tuple[StageResult, Judgement]], verdict: Verdict, headline: str) -> Run:
    """Replace PROVISIONAL verdicts of the run, and move its node accordingly, in one transaction.

    ``judged``: each stage's stored result and new judgement; ``verdict``: the run's with them. The replaced verdicts
    and the times of measurement are kept. A node in production leaves it on a FAIL alone. Raises NodeLeased while a run
    leases the node, IllegalMove if a verdict is not PROVISIONAL any more or the node is in another state, UnknownRun.
    """
    with writing() as session:
        row = access.run_row(session, run.key, run.node)
        node = access.node_row(session, run.node, lock=True)  # no run can take the node until this transaction ends
        lease = access.live_lease(session, node.name)
        open_ids = [id_ for id_, each in current_verdicts(session, node) if each.verdict is Verdict.PROVISIONAL]
        mine = session.scalars(select(StageRow).where(StageRow.run == row.id, StageRow.id.in_(open_ids)))
        former = {stage.stage: stage for stage in mine}
        stages = [judgement.stage for _, judgement in judged]
        holder = access.to_lease(lease) if lease else None
        reevaluation.check(access.to_node(node), holder, run.run_id, former, stages)
        for result, judgement in judged:
            supersede(session, row, node, former[judgement.stage], result, judgement)
        changes = ", ".join(f"{judgement.stage} {judgement.verdict}" for _, judgement in judged)
        sentence = f"run {run.run_id} was re-evaluated with newer peer statistics: {changes}"
        evidence = {
            "reevaluated": f"{run.dag_id}/{run.run_id}", "before": row.verdict, "verdict": str(verdict),
            "snapshots": sorted({judgement.snapshot for _, judgement in judged}),
        }  # fmt: skip
        state = State(node.state)
        access.write_event(session, node.name, state, state, "muster", sentence, evidence)
        row.headline = headline
        if row.verdict != verdict:
            row.verdict = str(verdict)
            session.flush()
            held, inconclusive = node.held_run, node.inconclusive
            proof = close(session, row, node, verdict)
            if State(node.state) is State.PRODUCTION:
                # What later runs of a node that serves found stands.
                node.held_run, node.inconclusive = node.held_run or held, inconclusive
                left = {each.verdict for _, each in current_verdicts(session, node)} - {Verdict.PASS}
                if proof.full_coverage and not (node.held_run or left):
                    certificates.issue(session, node, "muster", proof)
        row.state_after = node.state
        return access.to_run(row)
