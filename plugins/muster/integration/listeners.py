"""What Muster does in the scheduler itself: lets a node go when its run ends, and sees that its pools exist.

Runs inside the scheduler's loop: quick, and never raising, whatever happens.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from muster.integration.policy import DEFAULT_POOL, HOLDERS, POOLED, forks_tasks

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

TASK_MODULES = (
    "muster.operators.stage",
    "muster.operators.qualification",
    "muster.operators.member",
    "muster.operators.block",
    "muster.operators.upkeep",
)


@hookimpl
def on_starting(component: Any) -> None:
    """Before the scheduler forks workers: import what tasks need, and make the pool that load stages run in."""
    # Task processes, too, are forks of a process with these arguments, and announce themselves here.
    if type(component).__name__ != "Job" or not forks_tasks(sys.argv):
        return
    from muster.integration import policy

    policy.preload(TASK_MODULES)
    try:
        from airflow.utils.session import create_session

        from muster.settings import settings

        with create_session() as session:
            _make_pool(session, DEFAULT_POOL, settings().burn_slots, "how many nodes Muster loads at once")
    except Exception:
        log.exception("Muster's pool %s could not be made; make it by hand, with deferred tasks included", DEFAULT_POOL)


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:
    """A task in a pool that does not exist would wait for ever: a pool that a run names is made, with one slot."""
    name = (dag_run.conf or {}).get("pool") if dag_run.dag_id in POOLED else None
    if not isinstance(name, str) or not name:
        return
    try:
        from sqlalchemy.orm import object_session

        # The scheduler's own session, which only the scheduler may commit: another one would wait for its lock.
        session = object_session(dag_run)
        if session is not None:
            _make_pool(session, name, 1, f"made for run {dag_run.run_id}, which names it: give it its real slots")
    except Exception:
        log.exception("pool %s of run %s could not be looked at", name, dag_run.run_id)


def _make_pool(session: Session, name: str, slots: int, description: str) -> None:
    """Make a pool unless there is one. Never by an error: that would spoil the transaction of the whole session."""
    from airflow.models.pool import Pool
    from sqlalchemy import select
    from sqlalchemy.dialects import postgresql, sqlite

    if session.scalar(select(Pool.id).where(Pool.pool == name)) is not None:
        return
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    values = {"pool": name, "slots": slots, "description": description, "include_deferred": True}
    session.execute(insert(Pool).values(values).on_conflict_do_nothing(index_elements=[Pool.pool]))
    log.warning("made pool %s with %d slots", name, slots)


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:
    """The run is over: its node is free."""
    _release(dag_run, "success")


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """The run is over: its node is free."""
    _release(dag_run, "failed")


def _release(dag_run: DagRun, state: str) -> None:
    if dag_run.dag_id not in HOLDERS:
        return
    try:
        from muster.integration import closing

        closing.release(dag_run.dag_id, dag_run.run_id, f"the run ended: {state}")
    except Exception:
        log.exception("the node of run %s is not released yet; housekeeping will do it", dag_run.run_id)
