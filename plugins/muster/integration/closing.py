"""Releases the nodes of a run that is over, after any FAIL that it recorded has taken effect."""

from __future__ import annotations

import logging

from muster import store
from muster.errors import MusterError
from muster.model import dags
from muster.model.runs import RunKey
from muster.model.states import State
from muster.rules.lifecycle.ending import undecided
from muster_criteria.model import Verdict

log = logging.getLogger(__name__)


def refuse_another_airflow(known: int, runs: int) -> None:
    """Raise MusterError if this Airflow knows none of several ``runs`` that hold nodes: another's, they may be running.

    A single unknown run may have been deleted.
    """
    if runs > 1 and not known:
        raise MusterError(
            f"none of the {runs} runs that hold nodes is known to this Airflow, so none is ended: these records belong "
            "to another Airflow, whose tests may be running. If it is gone for good, free their nodes with "
            "`muster housekeeping --unknown-runs`"
        )


def release(key: RunKey, reason: str) -> list[str]:
    """Release the nodes that the run holds; returns their names.

    A node with a recorded FAIL whose run was not concluded (the task ``conclude`` failed) goes into quarantine first:
    otherwise the run would end INCONCLUSIVE and the node could be qualified again. A node in revalidation whose run
    has no verdict is treated as after any other INCONCLUSIVE run, or as after a SKIPPED one if it was preempted.
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
    try:
        run = store.runs.get(key, node=node)
        verdicts = store.runs.stages(key, node=node)
        failed = [each for each in verdicts if each.verdict is Verdict.FAIL]
    except MusterError:  # it was not begun
        return
    if failed and run.ended_at is None:
        headline = f"{failed[0].stage}: {failed[0].reason}"
        closed = store.runs.finish(key, Verdict.FAIL, headline, node=node)
        log.warning("%s: FAIL: %s (%s); the run was not concluded", node, headline, closed.state_after)
    elif run.ended_at is None and store.nodes.get(node).state is State.REVALIDATION:
        place = store.schedulers.place(node)
        verdict = Verdict.SKIPPED if place is not None and place.preempted else Verdict.INCONCLUSIVE
        headline = undecided(run.required_stages, {each.stage for each in verdicts}, reason)
        store.runs.finish(key, verdict, headline, node=node)
