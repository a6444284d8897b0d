"""What the tasks of one run pass to each other besides verdicts: faults of the controller, attempts spent, how a block
meets.

Kept here and not in Airflow's XComs, which anyone who may start a run can write, and anyone who may see it can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from muster.errors import UnknownRun
from muster.model.runs import RunKey
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import RunRow


def note_fault(key: RunKey, stage: str, why: str, *, node: str = "") -> None:
    """Note why the controller could not do its part in the stage's last attempt; "" forgets it. Raises UnknownRun."""
    with writing() as session:
        run = access.run_row(session, key, node)
        rest = {name: fault for name, fault in run.faults.items() if name != stage}
        run.faults = {**rest, stage: why} if why else rest


def forget_fault(key: RunKey, stage: str, *, node: str = "") -> None:
    """Forget the fault of an earlier attempt when another begins. Raises UnknownRun."""
    with reading() as session:
        if stage not in access.run_row(session, key, node).faults:
            return
    note_fault(key, stage, "", node=node)


def spent(key: RunKey, stage: str, tries: int, *, node: str = "") -> int:
    """The number of attempts at the stage that ended without a verdict. Raises UnknownRun.

    ``tries``: the task's ``max_tries``, which a user's Clear raises: the count then starts again.
    """
    with reading() as session:
        return _spent(access.run_row(session, key, node), stage, tries)


def spend(key: RunKey, stage: str, tries: int, *, node: str = "") -> int:
    """Count one more attempt as in ``spent``, and return their number. Raises UnknownRun."""
    with writing() as session:
        run = access.run_row(session, key, node)
        count = _spent(run, stage, tries) + 1
        run.spent = {**run.spent, stage: [tries, count]}
        return count


def _spent(run: RunRow, stage: str, tries: int) -> int:
    of, count = run.spent.get(stage, (tries, 0))
    return int(count) if of == tries else 0


def faults_of(key: RunKey) -> dict[str, str]:
    """{node: why the controller could not test it}, for the run's nodes with such a fault."""
    with reading() as session:
        rows = session.scalars(select(RunRow).where(*access.of_run(key)).order_by(RunRow.id))
        return {row.node: "; ".join(dict.fromkeys(row.faults.values())) for row in rows if row.faults}


def faulty_stages(key: RunKey) -> frozenset[str]:
    """The stages of this run of one node in whose last attempt the controller was at fault. Raises UnknownRun."""
    with reading() as session:
        return frozenset(access.run_row(session, key).faults)


def keep_block(key: RunKey, block: Mapping[str, Any]) -> None:
    """Keep for each member how the block meets: its members by rank, the rendezvous and its secret, the seed."""
    with writing() as session:
        for run in session.scalars(select(RunRow).where(*access.of_run(key))):
            run.block = dict(block)


def block_of(key: RunKey) -> dict[str, Any]:
    """How the run's block meets. Raises UnknownRun if the run has claimed none."""
    with reading() as session:
        block = access.block_of(session, key)
    if not block:
        raise UnknownRun(f"run {key.run_id!r} of {key.dag_id} has claimed no block")
    return block
