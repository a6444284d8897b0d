"""PROVISIONAL verdicts, and their replacement once there are peers to compare with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import select

from muster.model.runs import Run, StageVerdict
from muster.model.states import State
from muster.rules.lifecycle import reevaluation
from muster.rules.lifecycle.waivers import Standing
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import LeaseRow, NodeRow, StageRow
from muster.store.decisions import certificates, waivers
from muster.store.decisions.current import current_verdicts
from muster.store.testing.runs import close
from muster.store.testing.stages import supersede
from muster_criteria.model import Judgement, Verdict

if TYPE_CHECKING:
    from muster_criteria.measured import StageResult


def provisional() -> dict[str, list[StageVerdict]]:
    """{node: its current PROVISIONAL verdicts}, for nodes whose verdicts may be re-evaluated now.

    These are the nodes that are qualified or serve, and that no run holds.
    """
    provisional = select(StageRow.node).where(StageRow.current, StageRow.verdict == Verdict.PROVISIONAL)
    nodes = select(NodeRow).where(NodeRow.state.in_(reevaluation.STATES), NodeRow.name.in_(provisional))
    with reading() as session:
        rows = list(session.scalars(nodes.order_by(NodeRow.name)))
        verdicts = {row.name: [verdict for _, verdict in current_verdicts(session, row)] for row in rows}
        leased = set(session.scalars(select(LeaseRow.node).where(LeaseRow.released_at.is_(None))))
        return reevaluation.waiting([access.to_node(row) for row in rows], verdicts, leased)


@dataclasses.dataclass(frozen=True)
class Replacement:
    """A stage's new judgement, the stored result that it rests on, and the waivers that were applied to it."""

    result: StageResult
    judgement: Judgement
    standing: Standing


def record(run: Run, judged: Sequence[Replacement], verdict: Verdict, headline: str) -> Run:
    """Replace PROVISIONAL verdicts of the run, and move its node accordingly, in one transaction.

    ``judged``: one for each stage; ``verdict``: the run's with them. The replaced verdicts
    and the times of measurement are kept. A node in production leaves it on a FAIL alone. Raises NodeLeased while a run
    leases the node, IllegalMove if a verdict is not PROVISIONAL any more, the node is in another state or other waivers
    hold for it now, UnknownRun.
    """
    with writing() as session:
        row = access.run_row(session, run.key, run.node)
        node = access.node_row(session, run.node, lock=True)  # no run can take the node until this transaction ends
        lease = access.live_lease(session, node.name)
        open_ids = [id_ for id_, each in current_verdicts(session, node) if each.verdict is Verdict.PROVISIONAL]
        mine = session.scalars(select(StageRow).where(StageRow.run == row.id, StageRow.id.in_(open_ids)))
        former = {stage.stage: stage for stage in mine}
        stages = [each.judgement.stage for each in judged]
        holder = access.to_lease(lease) if lease else None
        reevaluation.check(access.to_node(node), holder, run.run_id, former, stages)
        for each in judged:
            reevaluation.check_waivers(each.standing, waivers.standing(session, node))
            supersede(session, row, node, former[each.judgement.stage], each.result, each.judgement)
        changes = ", ".join(f"{each.judgement.stage} {each.judgement.verdict}" for each in judged)
        sentence = f"run {run.run_id} was re-evaluated with newer peer statistics: {changes}"
        evidence = {
            "reevaluated": f"{run.dag_id}/{run.run_id}", "before": row.verdict, "verdict": str(verdict),
            "snapshots": sorted({each.judgement.snapshot for each in judged}),
        }  # fmt: skip
        access.remark(session, node, "muster", sentence, evidence)
        row.headline, row.reported_at = headline, None
        if row.verdict != verdict:
            row.verdict = str(verdict)
            session.flush()
            held, inconclusive = node.held_run, node.inconclusive
            proof = close(session, row, node, verdict)
            if State(node.state) is State.PRODUCTION:
                # Keep what later runs of a node in service found.
                node.held_run, node.inconclusive = node.held_run or held, inconclusive
                left = {each.verdict for _, each in current_verdicts(session, node)} - {Verdict.PASS}
                if proof.full_coverage and not (node.held_run or left):
                    certificates.issue(session, node, "muster", proof)
        row.state_after = node.state
        return access.to_run(row)
