"""The tasks of revalidation: choose idle production nodes, take one out of production, and return it.

Each is a plain function of run ids and parameters; the DAG files make tasks of them.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from muster import acting, store
from muster.admission import service
from muster.admission.idle_fleet import known, limits
from muster.errors import ControllerFault, LeftAlone, MusterError, NeverClosed, NodeLeased, NodePaused, UnknownRun
from muster.integration import runid
from muster.model import dags
from muster.model.runs import RunKey
from muster.model.states import SERVING, State
from muster.operators.testing import claims, qualification
from muster.reporting import notices
from muster.rules.idle import selection as planning
from muster.rules.lifecycle.transitions import INCONCLUSIVE_BUDGET
from muster.settings import settings
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.skus import current_sku
from muster_criteria.stages import STAGES

log = logging.getLogger(__name__)

LATEST = 2 * planning.STEP
"""Latest start of a test of an idle node after it was chosen: by then, others have been chosen twice."""


def pick(run_id: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the arguments of TriggerDagRunOperator for one run of node_revalidation per node to test now.

    At most ``MAPPED_MAX``, the most urgent; the others follow at the next call. Raises ControllerFault, and
    AirflowFailException for an unknown key in the run's conf.
    """
    with claims.failing_at_once():
        claims.refuse_unknown(params, "level")
    level = str(params["level"])
    claims.controller_ready()
    nodes = {node.name: node for node in store.nodes.find()}
    choice = planning.choose(known(list(nodes.values()), store.clock.now(), level))
    chosen = choice.chosen[: dags.MAPPED_MAX]
    for planned in chosen:
        log.info("%s is tested in %s: %s", planned.node, ", ".join(planned.stages), planned.why)
    for planned in choice.chosen[dags.MAPPED_MAX :]:
        log.info("%s is not tested now: %d come before it", planned.node, dags.MAPPED_MAX)
    for name, why in choice.passed_over.items():
        log.info("%s is not tested now: %s", name, why)
    tests = []
    for each in chosen:
        waits = nodes[each.node].state is State.REVALIDATION
        why = "it was waiting" if waits else f"it was idle; {each.why}"
        conf = {"node": each.node, "level": level, "reason": why, "stages": list(each.stages)}
        run = runid.of_pick(each.node, "waiting" if waits else "idle", run_id)
        tests.append({"trigger_run_id": run, "conf": claims.beginning_within(LATEST, conf)})
    return tests


def claim(
    key: RunKey, params: Mapping[str, Any], user: str | None = None, run_after: datetime.datetime | None = None
) -> dict[str, Any]:
    """Take a node out of production for this run. Raises AirflowSkipException if the node is in use by now, or if it
    was chosen while idle and the run begins too late or in a blackout.

    ``user``: the user of Airflow who started the run, in its pages or over REST; ``run_after``: the run's, in Airflow.
    Raises AirflowFailException if a person has to resolve something first, ControllerFault.
    """
    # A refusal that the next run would repeat is noted, so that other nodes come first for a while.
    with claims.failing_at_once(), claims.noting_refusal([str(params["node"])], but=(ControllerFault,)):
        claims.refuse_unknown(params, "node", "level", "reason", "stages")
        return _claim(key, params, acting.airflow_login(user or ""), run_after)


def _claim(key: RunKey, params: Mapping[str, Any], login: str, run_after: datetime.datetime | None) -> dict[str, Any]:
    level, reason = str(params["level"]), str(params.get("reason") or "")
    node = claims.testable(str(params["node"]), level, key, run_after)
    claims.controller_ready()
    stages = _stages(params)
    limit_s = programme.test_limit_s(current_sku(node.sku, settings().sku_folders), stages, level)
    name, asked = node.name, runid.ASKED_BY in key.run_id  # each refusal of a person's request is noted
    new = runid.is_of_pick(key.run_id, name) and not store.runs.find(run=key)
    if new and (why := limits(store.clock.now()).closed or claims.late(key, params)):
        raise AirflowSkipException(f"{name} is not tested: {why}")
    lease = store.leases.get(name)
    if lease is None or lease.key != key:
        if node.state not in SERVING:
            raise MusterError(f"{name} is in {node.state}, and only nodes in production are revalidated; qualify it")
        if why := service.in_use(node):
            # A waiting node comes first each time, while a user's job on it may run for days.
            if asked or node.state is State.REVALIDATION:
                store.signs.note_refusal(name, why, busy=True)
            raise AirflowSkipException(f"{name} is not tested: {why}")
    try:
        with claims.leased([name], key) as (lease,):
            # Without force: revalidation never disturbs a node in use.
            service.take_for_test(name, f"{key.dag_id} {key.run_id}", f"revalidation {key.run_id}", limit_s)
            store.runs.begin(key, name, level, reason, started_by=login, required_stages=stages, run_after=run_after)
    except NodePaused as error:
        if asked:
            store.signs.note_refusal(name, str(error))
        raise AirflowSkipException(f"{name} is not tested: {error}") from error
    except (NodeLeased, LeftAlone) as error:
        if asked or isinstance(error, LeftAlone):
            store.signs.note_refusal(name, str(error), busy=not isinstance(error, NeverClosed))
        _return_to_scheduler(name, key)
        raise AirflowSkipException(f"{name} is not tested: {error}") from error
    return {"node": name, "sku": node.sku, "level": level, "token": lease.token, "simulated": node.simulated}


def _stages(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the stages that the run requests, in order; all if it lists none. Raises MusterError if unknown."""
    chosen = params.get("stages") or STAGES
    if unknown := set(chosen) - set(STAGES):
        raise MusterError(f"there is no stage {min(unknown)!r}; the stages are {', '.join(STAGES)}")
    return tuple(stage for stage in STAGES if stage in chosen)


def conclude(key: RunKey) -> dict[str, str]:
    """Combine the stages' verdicts, move the node, and return it to the scheduler if it is in production.

    Raises AirflowFailException if the verdict is FAIL, INCONCLUSIVE or SKIPPED (``qualification.conclude``).
    """
    try:
        run = store.runs.get(key)
    except UnknownRun as error:
        raise AirflowSkipException("the node was not tested") from error
    try:
        return qualification.conclude(key)
    finally:
        _return_to_scheduler(run.node, key)
        _ask_about_no_verdict(run.node)


def _ask_about_no_verdict(name: str) -> None:
    node = store.nodes.get(name)
    if node.state is State.PRODUCTION and node.inconclusive >= INCONCLUSIVE_BUDGET:
        notices.notify(
            f"no verdict/{name}",
            f"{name} serves, and {node.inconclusive} tests of it in a row "
            f"were inconclusive: see `muster node show {name}`, remove the cause, and test it again, or withdraw it "
            f"with `muster node move {name} quarantine --reason …`",
            of=name,
        )


def _return_to_scheduler(name: str, key: RunKey) -> None:
    place = store.schedulers.place(name)  # before the lease: a run that takes the node afterwards has another job
    lease = store.leases.get(name)
    if lease is not None and lease.key != key:
        return  # another run holds it now
    if place is not None:
        service.end_test(name, place.test_job)
    if store.nodes.get(name).state is State.PRODUCTION:
        store.schedulers.restore(name, "its revalidation is over")
    service.carry_out(name)
