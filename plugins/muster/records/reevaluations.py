"""PROVISIONAL verdicts spoken again, once there are peers to say what nobody could say before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import select

from muster.errors import IllegalMove, LeaseHeld
from muster.lifecycle.transitions import STAGES, State
from muster.records.database import access
from muster.records.database.engine import reading, writing
from muster.records.database.models import Lease, Node, Run, StageRecord
from muster.records.runs import close
from muster.records.stages import say_again
from muster.records.values import RunRecord, StageVerdict
from muster.records.verdicts import standing_verdicts
from muster_criteria.model import Judgement, Verdict

if TYPE_CHECKING:
    from muster_criteria.measured import StageResult


def provisional_verdicts() -> dict[str, list[StageVerdict]]:
    """{node: the PROVISIONAL verdicts that stand on it} of qualified nodes that no run holds: peers may settle them.

    Nodes that serve are left to their next test: a person took them in as they are.
    """
    held = select(Lease.node).where(Lease.released_at.is_(None))
    provisional = (
        select(Run.node)
        .join(StageRecord, StageRecord.run == Run.id)
        .where(StageRecord.current, StageRecord.verdict == str(Verdict.PROVISIONAL))
    )
    waiting = select(Node).where(
        Node.state == str(State.QUALIFIED), Node.name.in_(provisional), Node.name.not_in(held), ~Node.shadow
    )
    with reading() as session:
        found = {
            node.name: [
                said
                for _, said in standing_verdicts(session, node)
                if said.verdict is Verdict.PROVISIONAL and said.stage in STAGES
            ]
            for node in session.scalars(waiting.order_by(Node.name))
        }
    return {node: verdicts for node, verdicts in found.items() if verdicts}


def record_reevaluation(
    run: RunRecord, spoken: Sequence[tuple[StageResult, Judgement]], verdict: Verdict, headline: str
) -> RunRecord:
    """Let judgements by later peers stand instead of PROVISIONAL ones of the run, and move its node by what they say.

    All in one transaction: ``spoken`` are the stages, each with the result that it rests on, and ``verdict`` is the
    run's with them. What they replace is kept; when it was measured stays as it was. Raises LeaseHeld while any run
    holds the node, IllegalMove where such a verdict stands no more or the node has left ``QUALIFIED``, UnknownRun.
    """
    with writing() as session:
        row = access.run_row(session, run.dag_id, run.run_id, run.node)
        # Whoever takes the node locks it first: until this is over, nobody does.
        node = access.node_row(session, run.node, lock=True)
        if held := access.live_lease(session, node.name):
            raise LeaseHeld(f"{node.name} is held by run {held.run_id} of {held.dag_id}")
        if State(node.state) is not State.QUALIFIED:
            raise IllegalMove(f"{node.name} has moved to {node.state} since, and is not judged again")
        stands = {id_ for id_, said in standing_verdicts(session, node) if said.verdict is Verdict.PROVISIONAL}
        mine = session.scalars(select(StageRecord).where(StageRecord.run == row.id, StageRecord.id.in_(stands)))
        former = {stage.stage: stage for stage in mine}
        for result, said in spoken:
            if said.stage not in former:
                raise IllegalMove(f"{said.stage} of run {run.run_id} is PROVISIONAL no more, and is not judged again")
            say_again(session, row, node, former[said.stage], result, said)
        stages = ", ".join(f"{said.stage} {said.verdict}" for _, said in spoken)
        sentence = f"run {run.run_id} was judged again, by peers known since: {stages}"
        evidence = {
            "reevaluated": f"{run.dag_id}/{run.run_id}", "before": row.verdict, "verdict": str(verdict),
            "snapshots": sorted({said.snapshot for _, said in spoken}),
        }  # fmt: skip
        access.write_event(session, node.name, State.QUALIFIED, State.QUALIFIED, "muster", sentence, evidence)
        row.headline = headline
        if row.verdict != verdict:
            row.verdict = str(verdict)
            session.flush()
            close(session, row, node, verdict)
        row.state_after = node.state
        return access.to_run(row)
