"""The tasks around the stages of a node's qualification: take the node, conclude, report, let it go.

Each is a plain function of run ids and parameters; the DAG file makes tasks of them.
"""

from __future__ import annotations

import dataclasses
import logging
import posixpath
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from muster import records
from muster.admission.backend import backend
from muster.errors import IllegalMove, MusterError, UnknownRun
from muster.operators import claims, mailing
from muster.remote import attempt, jobs
from muster.remote.hooks import NodeSSHHook
from muster.settings import settings
from muster_criteria.model import Verdict
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.model import SkuError

log = logging.getLogger(__name__)


def claim(dag_id: str, run_id: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Take the node for this run, unless another run holds it or somebody uses it; begin the run in the records.

    Raises AirflowFailException, one sentence, where a person has to do something first.
    """
    with claims.told():
        return _claim(dag_id, run_id, params)


def _claim(dag_id: str, run_id: str, params: Mapping[str, Any]) -> dict[str, Any]:
    node, level = claims.testable(params)
    name = node.name
    forced = str(params.get("force_reason") or "").strip() or None
    lease = records.acquire_lease(name, dag_id, run_id)
    try:
        allocation = backend().allocation(name)
        if allocation.allocated and not forced:
            raise MusterError(
                f"{name} is in use: {allocation.by}; wait until it is free, or give a force_reason to test it anyway"
            )
        records.begin_run(
            dag_id, run_id, name, level, str(params.get("reason") or ""), forced, required_stages=programme.STAGES
        )
    except (MusterError, SkuError) as error:
        records.release_leases(dag_id, run_id, f"not begun: {error}")
        raise
    log.info("%s is held by this run with fencing token %d", name, lease.token)
    return {"node": name, "sku": node.sku, "level": level, "token": lease.token, "simulated": node.simulated}


def conclude(dag_id: str, run_id: str) -> dict[str, str]:
    """Put the stages' verdicts together, close the run and move its node; a run that did not qualify it fails here."""
    from muster_criteria.stage.verdict import overall

    try:
        run = records.get_run(dag_id, run_id)
        judgements = [stage.judgement for stage in records.run_report(dag_id, run_id).stages]
        verdict, headline = overall(judgements, run.required_stages)
        closed = records.finish_run(dag_id, run_id, verdict, headline)
    except (UnknownRun, IllegalMove) as error:
        raise AirflowFailException(f"nothing was concluded: {error}") from error
    log.info("%s: %s (%s → %s)", verdict, headline, closed.state_before, closed.state_after)
    if verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        raise AirflowFailException(f"{verdict}: {headline}")
    return {"verdict": str(verdict), "headline": headline, "state": str(closed.state_after)}


def report(dag_id: str, run_id: str) -> str:
    """Render the run's report, put it in the outbox, and try to send it; a mail server that is down fails nothing."""
    return mailing.send_report(dag_id, run_id)


def release(dag_id: str, run_id: str) -> list[str]:
    """Let the node go, with nothing of this run left running on it."""
    try:
        _stop_leftovers(dag_id, run_id)
    except MusterError as error:
        # The node ends the job itself by its deadline, and ends older work as soon as a newer run arrives.
        log.warning("a job of this run may still be running on the node: %s", error)
    freed = records.release_leases(dag_id, run_id, "the run is over")
    log.info("released %s", ", ".join(freed) or "nothing: it had been let go already")
    return freed


def _stop_leftovers(dag_id: str, run_id: str) -> None:
    """Stop jobs that nobody waits for any more: a task was marked before the triggerer had taken up its trigger."""
    latest = [records.get_job(dag_id, run_id, stage) for stage in programme.STAGES]
    running = [job for job in latest if job is not None and job.state == attempt.RUNNING]
    if not running:
        return
    node = records.get_node(records.get_run(dag_id, run_id).node)
    with NodeSSHHook(node, settings().ssh_conn_id, timeout=settings().ssh_timeout_s).get_conn() as client:
        for job in running:
            folder, key = posixpath.split(job.remote_dir)
            jobs.stop(client, posixpath.dirname(folder), key, node.launch)
            records.record_job(dataclasses.replace(job, state=attempt.STOPPED, note="its run was over"))
            log.warning("stopped the job of stage %s, which nobody waited for any more", job.stage)
