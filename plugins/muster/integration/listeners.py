"""Listeners in the scheduler: release a node when its run ends, give a run its node's pool, and create missing pools.
In the DAG processor: import what the DAG files import.

The listeners for runs are called in the scheduler's loop: they are quick and never raise.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.listeners import hookimpl
from airflow.utils.state import State

from muster.errors import UnknownNode
from muster.integration import policy
from muster.model.dags import BURN_POOL, HOLDERS, NODE_QUALIFICATION
from muster.model.runs import RunKey

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)


@hookimpl
def on_starting(component: Any) -> None:
    """In the scheduler: import the tasks' modules where it forks their processes, create the stages' pool.

    In the DAG processor: import what the DAG files import, otherwise each process that reads one does so again.
    """
    # Also called in task processes, which are forks of a process with these arguments.
    if type(component).__name__ != "Job":
        return
    if policy.is_dag_processor(sys.argv):
        policy.preload(policy.dag_modules())
    if not policy.is_scheduler(sys.argv):
        return
    if policy.forks_tasks(sys.argv, conf.get("core", "executor")):
        policy.preload([*policy.dag_modules(), *policy.WARM])
    try:
        from airflow.utils.session import create_session

        with create_session() as session:
            _make_burn_pool(session)
    except Exception:
        log.exception("Muster's pool %s could not be made; make it by hand, with deferred tasks included", BURN_POOL)


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:
    """Give a qualification that names no pool its node's, and create its pool: in a missing one tasks wait forever."""
    if dag_run.dag_id != NODE_QUALIFICATION:
        return
    try:
        from sqlalchemy.orm import object_session

        # The scheduler's own session, which only the scheduler may commit: another one would wait for its lock.
        session = object_session(dag_run)
        if session is None:
            return
        _take_own_pool(session, dag_run)
        if name := policy.pool_of(dag_run):
            _make_pool(session, name, 1, f"made for run {dag_run.run_id}, which needs it: give it its real slots")
        else:
            _make_burn_pool(session)
    except Exception:
        log.exception("the pool of run %s could not be looked at", dag_run.run_id)


def _take_own_pool(session: Session, dag_run: DagRun) -> None:
    """Write the node's own pool, if it has one, into the conf and the tasks of a run that names none."""
    from muster import store

    conf = dict(dag_run.conf or {})
    if conf.get("pool") or not isinstance(conf.get("node"), str):
        return
    try:
        own = store.nodes.get(conf["node"]).pool
    except UnknownNode:  # the claim refuses the run
        return
    if own:
        dag_run.conf = {**conf, "pool": own}
        for task in dag_run.get_task_instances(session=session):
            policy.task_instance_mutation_hook(task, dag_run)


def _make_burn_pool(session: Session) -> None:
    from muster.settings import settings

    _make_pool(session, BURN_POOL, settings().burn_slots, "how many new nodes Muster tests at once")


def _make_pool(session: Session, name: str, slots: int, description: str) -> None:
    """Create a pool unless it exists; a statement that the database refuses leaves the session's transaction usable."""
    from airflow.models.pool import Pool
    from sqlalchemy.dialects import postgresql, sqlite

    values = {"pool": name, "slots": slots, "description": description, "include_deferred": True}
    session.flush()  # so that the savepoint does not undo it
    # The end of a savepoint of the session would count as a commit, which the scheduler forbids.
    connection = session.connection()
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    unless_there = insert(Pool).values(values).on_conflict_do_nothing(index_elements=[Pool.pool])
    with connection.begin_nested():
        made = connection.execute(unless_there, execution_options={"preserve_rowcount": True}).rowcount
    if made:
        log.warning("made pool %s with %d slots", name, slots)


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:
    """Release the run's node."""
    _release(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """Release the run's node."""
    _release(dag_run)


def _release(dag_run: DagRun) -> None:
    # A run that a person marks goes on until its teardowns have stopped its load; Airflow then calls again.
    if dag_run.dag_id not in HOLDERS or dag_run.state not in State.finished_dr_states:
        return
    try:
        from muster import store
        from muster.integration import closing

        key = RunKey.of(dag_run)
        with store.engine.hurried():
            if not store.leases.of_another(key, dag_run.run_after):
                closing.release(key, f"the run ended: {dag_run.state}")
    except Exception:
        log.exception("the node of run %s is not released yet; housekeeping will do it", dag_run.run_id)
