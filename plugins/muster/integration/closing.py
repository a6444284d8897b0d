"""Releases the nodes of a run that is over, after any FAIL that it recorded has taken effect."""

from __future__ import annotations

import logging

from muster import store
from muster.errors import MusterError
from muster.model import dags
from muster.model.runs import RunKey
from muster.model.states import State
from muster.remote import outcome
from muster_criteria.model import Verdict

log = logging.getLogger(__name__)


def refuse_another_airflow(known: int, runs: int) -> None:
    """Raise MusterError if an Airflow knows none of several ``runs`` that hold nodes: they are another's, and may run.

    One alone may have been deleted.
    """
    if runs > 1 and not known:
        raise MusterError(
            f"none of the {runs} runs that hold nodes is known to this Airflow, so none is ended: these records belong "
            "to another Airflow, whose tests may be running. If it is gone for good, free their nodes with "
            "`muster housekeeping --unknown-runs`"
        )


def release(key: RunKey, reason: str) -> list[str]:
    """Release the nodes that the run holds; returns their names.

    A run that was not concluded (the task ``conclude`` failed, or a person marked it or cleared a stage alone) ends by
    its stages' verdicts where one is a FAIL or all that it requires are sound. A node in revalidation whose run has no
    verdict is treated as after any other INCONCLUSIVE run, or as after a SKIPPED one if it was preempted.
    A repair whose end was not recorded counts, and its node leaves the state repair. All this is one transaction: no
    verdict that is recorded meanwhile is missed or replaced.
    """
    with store.engine.transaction():
        for node in store.leases.lock(key):
            if key.dag_id == dags.REPAIR:
                store.repairs.settle_lost(node)
            _conclude(key, node, reason)
        return store.leases.release(key, reason)


def _conclude(key: RunKey, node: str, reason: str) -> None:
    from muster_criteria.stage.verdict import overall

    try:
        run, faults = store.runs.get(key, node=node), store.attempts.faults_of(key)
    except MusterError:  # it was not begun
        return
    if run.ended_at is not None:
        return
    verdict, headline = overall(store.reporting.judgements(key, node=node).values(), run.required_stages)
    # A stage that runs again, or that the controller could not measure again, may still have what it passed with.
    last = [store.runs.get_job(key, stage, node=node) for stage in run.required_stages]
    measured = node not in faults and all(job is not None and job.state == outcome.FINAL for job in last)
    if verdict is Verdict.FAIL or (verdict is not Verdict.INCONCLUSIVE and measured):
        closed = store.runs.finish(key, verdict, headline, node=node)
        log.warning("%s: %s: %s (%s); the run was not concluded", node, verdict, headline, closed.state_after)
    elif store.nodes.get(node).state is State.REVALIDATION:
        place = store.schedulers.place(node)
        verdict = Verdict.SKIPPED if place is not None and place.preempted else Verdict.INCONCLUSIVE
        store.runs.finish(key, verdict, f"The run ended without a verdict: {reason}", node=node)
