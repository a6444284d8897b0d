"""What the tasks of one run tell one another beside verdicts: faults of the controller, and how a block meets.

Kept here and not in Airflow's XComs, which whoever may start a run may write, and whoever may look at it may read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, select

from muster.errors import UnknownRun
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import RunRow


def note_fault(dag_id: str, run_id: str, stage: str, why: str, *, node: str = "") -> None:
    """Note why the controller could not do its part in the stage's last attempt; "" forgets it. Raises UnknownRun."""
    with writing() as session:
        run = access.run_row(session, dag_id, run_id, node)
        rest = {name: fault for name, fault in run.faults.items() if name != stage}
        run.faults = {**rest, stage: why} if why else rest


def forget_fault(dag_id: str, run_id: str, stage: str, *, node: str = "") -> None:
    """Forget the fault of an earlier attempt, as another begins. Raises UnknownRun."""
    with reading() as session:
        if stage not in access.run_row(session, dag_id, run_id, node).faults:
            return
    note_fault(dag_id, run_id, stage, "", node=node)


def faults_of(dag_id: str, run_id: str) -> dict[str, str]:
    """{node: why the controller could not test it} of the run's nodes that it could not."""
    with reading() as session:
        rows = session.scalars(_of(dag_id, run_id))
        return {row.node: "; ".join(dict.fromkeys(row.faults.values())) for row in rows if row.faults}


def keep_block(dag_id: str, run_id: str, block: Mapping[str, Any]) -> None:
    """Keep for each member how the block meets: its members by rank, the rendezvous and its secret, the seed."""
    with writing() as session:
        for run in session.scalars(_of(dag_id, run_id)):
            run.block = dict(block)


def block_of(dag_id: str, run_id: str) -> dict[str, Any]:
    """How the run's block meets. Raises UnknownRun if the run has claimed none."""
    with reading() as session:
        row = session.scalar(_of(dag_id, run_id).limit(1))
        block = row.block if row else {}
    if not block:
        raise UnknownRun(f"run {run_id!r} of {dag_id} has claimed no block")
    return dict(block)


def _of(dag_id: str, run_id: str) -> Select[RunRow]:
    return select(RunRow).where(RunRow.dag_id == dag_id, RunRow.run_id == run_id).order_by(RunRow.id)
