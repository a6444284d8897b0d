"""The tasks of revalidation: which idle production nodes are tested again, and taking one out of service and back.

Each is a plain function of run ids and parameters; the DAG files make tasks of them.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from muster import records
from muster.admission.backend import backend
from muster.errors import LeaseHeld, MusterError, UnknownRun
from muster.integration import runid
from muster.lifecycle import selection as planning
from muster.lifecycle.selection import Idle
from muster.lifecycle.transitions import SERVING, State
from muster.operators import claims, qualification
from muster.records import NodeRecord
from muster.settings import settings
from muster_criteria.sku_files import programme

log = logging.getLogger(__name__)


def pick(run_id: str, level: str) -> list[dict[str, Any]]:
    """The nodes to test again now, each as a run of node_revalidation, as TriggerDagRunOperator takes it."""
    current = settings()
    leased = {lease.node for lease in records.live_leases()}
    nodes = records.list_nodes(states=(State.PRODUCTION, State.REVALIDATION))
    choice = planning.choose(
        nodes,
        datetime.datetime.now(datetime.UTC),
        {node.name: _idle(node.name) for node in nodes if node.state is State.PRODUCTION},
        records.last_passes(),
        share=current.revalidation_share,
        after=datetime.timedelta(hours=current.revalidation_after_hours),
        leased=leased,
        barred=_barred(nodes),
    )
    waiting = [node.name for node in nodes if node.state is State.REVALIDATION and node.name not in leased]
    if waiting:
        log.info("out of service until they pass, and tested again now: %s", ", ".join(waiting))
    for name in choice.passed_over.keys() - set(waiting):
        log.info("%s is left alone: %s", name, choice.passed_over[name])
    pools = {node.name: node.pool for node in nodes}
    return [
        {
            "trigger_run_id": runid.run_id(name, f"{reason} in {run_id}"),
            "conf": {"node": name, "level": level, "reason": f"it was {reason}", "pool": pools[name] or None},
        }
        for reason, names in (("waiting", waiting), ("idle", choice.chosen))
        for name in names
    ]


def _barred(nodes: Sequence[NodeRecord]) -> Callable[[NodeRecord], str]:
    """The circuit breaker's word on each node: while it is open, nobody is taken out of production for a test."""
    why = {simulated: records.breaker(simulated=simulated).why for simulated in {node.simulated for node in nodes}}
    return lambda node: why[node.simulated]


def _in_use(node: NodeRecord) -> str:
    """Why the node cannot be tested now; "" if nobody uses it. One that waits in revalidation serves nobody new."""
    if node.state is State.PRODUCTION:
        said = _idle(node.name)
        return "" if said.idle else said.why
    allocation = backend().allocation(node.name)
    return allocation.by if allocation.allocated else ""


def _idle(name: str) -> Idle:
    """The backend's word; a node that it cannot tell about is left alone."""
    try:
        return backend().idle(name)
    except MusterError as error:
        return Idle(False, f"it cannot be told whether it is idle: {error}")


def claim(dag_id: str, run_id: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Take a node in production out of service for this run; skips if somebody has come to use it.

    Raises AirflowFailException, one sentence, where a person has to do something first.
    """
    with claims.failing_at_once():
        return _claim(dag_id, run_id, params)


def _claim(dag_id: str, run_id: str, params: Mapping[str, Any]) -> dict[str, Any]:
    level, reason = str(params["level"]), str(params.get("reason") or "")
    node = claims.testable(str(params["node"]), level)
    claims.refuse_other_pool(node, params)
    name = node.name
    lease = records.get_lease(name)
    if lease is None or (lease.dag_id, lease.run_id) != (dag_id, run_id):
        if node.state not in SERVING:
            raise MusterError(f"{name} is in {node.state}, and only nodes in production are revalidated; qualify it")
        if why := _in_use(node):
            raise AirflowSkipException(f"{name} is left alone: {why}")
    try:
        with claims.held([name], dag_id, run_id) as (lease,):
            # No force: a node in use is never disturbed for this.
            records.begin_run(dag_id, run_id, name, level, reason, required_stages=programme.STAGES)
            if not node.shadow:
                backend().withdraw(name, f"revalidation {run_id}")
    except LeaseHeld as error:
        raise AirflowSkipException(f"{name} is left alone: {error}") from error
    return {"node": name, "sku": node.sku, "level": level, "token": lease.token, "simulated": node.simulated}


def conclude(dag_id: str, run_id: str) -> dict[str, str]:
    """Put the stages' verdicts together, move the node, and give it back to the scheduler if it is in production.

    A run that did not end well fails here.
    """
    try:
        run = records.get_run(dag_id, run_id)
    except UnknownRun as error:
        raise AirflowSkipException("the node was left alone") from error
    try:
        return qualification.conclude(dag_id, run_id)
    finally:
        _give_back(run.node)


def _give_back(name: str) -> None:
    node = records.get_node(name)
    if node.state is State.PRODUCTION and not node.shadow:
        backend().admit(node.name)
