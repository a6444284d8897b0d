"""The tasks of revalidation: choose idle production nodes, take one out of production, and return it.

Each is a plain function of run ids and parameters; the DAG files make tasks of them.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from muster import acting, records
from muster.admission import service
from muster.errors import LeaseHeld, LeftAlone, MusterError, UnknownRun
from muster.integration import runid
from muster.lifecycle import selection as planning
from muster.lifecycle.transitions import SERVING, State
from muster.operators import claims, qualification
from muster.records import NodeRecord
from muster.settings import settings
from muster_criteria.sku_files import programme

log = logging.getLogger(__name__)


def pick(run_id: str, level: str) -> list[dict[str, Any]]:
    """Returns the arguments of TriggerDagRunOperator for one run of node_revalidation per node to test now.

    Raises ControllerFault.
    """
    claims.controller_ready()
    current = settings()
    leased = {lease.node for lease in records.live_leases()}
    nodes = records.list_nodes(states=(State.PRODUCTION, State.REVALIDATION))
    requested = {place.node for place in records.scheduler_places() if place.verify}
    passes = {node: passed for node, passed in records.last_passes().items() if node not in requested}
    choice = planning.choose(
        nodes,
        datetime.datetime.now(datetime.UTC),
        service.idle([node.name for node in nodes if node.state is State.PRODUCTION]),
        passes,
        share=current.revalidation_share,
        after=datetime.timedelta(hours=current.revalidation_after_hours),
        leased=leased,
        barred=_barred(nodes),
    )
    waiting = [node.name for node in nodes if node.state is State.REVALIDATION and node.name not in leased]
    if waiting:
        log.info("out of production until they pass, tested again now: %s", ", ".join(waiting))
    for name in choice.passed_over.keys() - set(waiting):
        log.info("%s is not tested now: %s", name, choice.passed_over[name])
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
    """Returns a function node → why the circuit breaker keeps it in production, "" while the breaker is closed."""
    why = {simulated: records.breaker(simulated=simulated).why for simulated in {node.simulated for node in nodes}}
    return lambda node: why[node.simulated]


def _in_use(node: NodeRecord) -> str:
    """Returns why the node cannot be tested now, "" if it is idle. In revalidation, only current allocations count."""
    if node.state is State.PRODUCTION:
        idle = service.idle([node.name])[node.name]
        return "" if idle.idle else idle.why
    allocation = service.allocation(node.name)
    return allocation.by if allocation.allocated else ""


def claim(dag_id: str, run_id: str, params: Mapping[str, Any], user: str | None = None) -> dict[str, Any]:
    """Take a node out of production for this run. Raises AirflowSkipException if the node is in use by now.

    ``user``: the user of Airflow who started the run, in its pages or over REST. Raises AirflowFailException if a
    person has to resolve something first, ControllerFault.
    """
    with claims.failing_at_once():
        return _claim(dag_id, run_id, params, acting.airflow_login(user or ""))


def _claim(dag_id: str, run_id: str, params: Mapping[str, Any], login: str) -> dict[str, Any]:
    level, reason = str(params["level"]), str(params.get("reason") or "")
    node = claims.testable(str(params["node"]), level)
    claims.controller_ready()
    claims.refuse_other_pool(node, params)
    name = node.name
    lease = records.get_lease(name)
    if lease is None or (lease.dag_id, lease.run_id) != (dag_id, run_id):
        if node.state not in SERVING:
            raise MusterError(f"{name} is in {node.state}, and only nodes in production are revalidated; qualify it")
        if why := _in_use(node):
            raise AirflowSkipException(f"{name} is not tested: {why}")
    try:
        with claims.held([name], dag_id, run_id) as (lease,):
            # Without force: revalidation never disturbs a node in use.
            service.withdraw_for_test(name, f"revalidation {run_id}")
            records.begin_run(dag_id, run_id, name, level, reason, started_by=login, required_stages=programme.STAGES)
    except (LeaseHeld, LeftAlone) as error:
        service.carry_out(name)
        raise AirflowSkipException(f"{name} is not tested: {error}") from error
    return {"node": name, "sku": node.sku, "level": level, "token": lease.token, "simulated": node.simulated}


def conclude(dag_id: str, run_id: str, faults: Callable[[], Mapping[str, str]] = dict) -> dict[str, str]:
    """Combine the stages' verdicts, move the node, and return it to the scheduler if it is in production.

    Raises AirflowFailException if the verdict is FAIL, INCONCLUSIVE or SKIPPED (``qualification.conclude``).
    """
    try:
        run = records.get_run(dag_id, run_id)
    except UnknownRun as error:
        raise AirflowSkipException("the node was not tested") from error
    try:
        return qualification.conclude(dag_id, run_id, faults)
    finally:
        _return_to_scheduler(run.node)


def _return_to_scheduler(name: str) -> None:
    if records.get_node(name).state is State.PRODUCTION:
        records.put_back(name, "its revalidation is over")
    service.carry_out(name)
