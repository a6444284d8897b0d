"""The tasks around the stages of a node's qualification: claim the node, conclude, report, release.

Each is a plain function of run ids and parameters; the DAG file makes tasks of them.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from muster import acting, store
from muster.admission import service
from muster.errors import IllegalMove, MusterError, UnknownRun
from muster.integration import closing
from muster.model.runs import PREEMPTED, RunKey
from muster.operators.testing import claims, faults, leftovers
from muster.reporting import mailing, run_note
from muster_criteria.model import Verdict
from muster_criteria.stages import STAGES

log = logging.getLogger(__name__)


def claim(
    key: RunKey, params: Mapping[str, Any], user: str | None = None, run_after: datetime.datetime | None = None
) -> dict[str, Any]:
    """Claim the node for this run, unless another run holds it or it is in use; begin the run in the records.

    ``user``: the user of Airflow who started the run, in its pages or over REST; ``run_after``: the run's, in Airflow.
    Raises AirflowFailException if a person has to resolve something first, ControllerFault.
    """
    force, reason = claims.forced(params), str(params.get("reason") or "")
    with claims.failing_at_once(), claims.noting_refusal([str(params["node"])]):
        claims.refuse_unknown(params, "node", "level", "reason", "force_reason", "pool")
        if why := claims.late(key, params):
            raise MusterError(
                f"{params['node']} is not tested: {why}; `muster qualify {params['node']}` starts another"
            )
        node = claims.testable(str(params["node"]), str(params["level"]), key, run_after)
        claims.controller_ready()
        level = str(params["level"])
        claims.refuse_other_pool(node, params)
        with claims.leased([node.name], key) as (lease,):
            claims.refuse_in_use([node.name], force)
            store.runs.begin(
                key, node.name, level, reason, force, started_by=acting.airflow_login(user or ""),
                required_stages=STAGES, run_after=run_after,
            )  # fmt: skip
    log.info("%s is leased by this run with fencing token %d", node.name, lease.token)
    return {"node": node.name, "sku": node.sku, "level": level, "token": lease.token, "simulated": node.simulated}


def conclude(key: RunKey) -> dict[str, str]:
    """Combine the stages' verdicts, close the run and move its node. Returns {verdict, headline, state}.

    A run without a verdict on the node because of a controller fault is SKIPPED. Raises AirflowFailException if the
    verdict is FAIL, INCONCLUSIVE or SKIPPED, or the run cannot be concluded.
    """
    from muster_criteria.stage.verdict import overall

    try:
        run, faulty = store.runs.get(key), faults.of_run(key)
        # After a Clear, a stage whose new attempt could not write the records still has its old PASS. Ignore it.
        unmade = store.attempts.faulty_stages(key)
        judgements = [
            each for stage, each in store.reporting.judgements(key, observed=False).items()
            if stage not in unmade or each.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)
        ]  # fmt: skip
        verdict, headline = overall(judgements, run.required_stages)
        unjudged = verdict is Verdict.INCONCLUSIVE and verdict not in {each.verdict for each in judgements}
        if unjudged and (fault := faulty.get(run.node)):
            verdict, headline = Verdict.SKIPPED, f"Not tested, for a fault of the controller: {fault}"
        if verdict is Verdict.INCONCLUSIVE and not run.forced and service.preempted(run.node):
            verdict, headline = Verdict.SKIPPED, f"{PREEMPTED}its scheduler took the node back for another job"
        closed = store.runs.finish(key, verdict, headline)
    except (UnknownRun, IllegalMove) as error:
        raise AirflowFailException(f"the run cannot be concluded: {error}") from error
    service.carry_out(run.node)
    log.info("%s: %s (%s → %s)", verdict, headline, closed.state_before, closed.state_after)
    if verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.SKIPPED):
        raise AirflowFailException(f"{verdict}: {headline}")
    return {"verdict": str(verdict), "headline": headline, "state": str(closed.state_after)}


def report(key: RunKey) -> str:
    """Note the verdict on the run, render and mail its report. Returns the delivery status; raises no SMTP error."""
    run_note.annotate(key)
    return mailing.send_report(key)


def release(key: RunKey) -> list[str]:
    """Stop this run's jobs on its nodes, release these, and carry out what that queues in their schedulers."""
    leftovers.stop(key)
    held = [lease.node for lease in store.leases.live(key)]
    # Before the release: a run that takes a node afterwards has another job.
    test_jobs = {place.node: place.test_job for place in map(store.schedulers.place, held) if place is not None}
    freed = closing.release(key, "its tasks have ended")
    for node in freed:
        service.end_test(node, test_jobs.get(node, ""))
        service.carry_out(node)  # a node whose test job kept it open is closed now, unless it passed
    log.info("released %s", ", ".join(freed) or "nothing: what it held was released before")
    return freed
