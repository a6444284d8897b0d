"""Periodic tasks, independent of runs: leases of ended runs, changes that wait for a scheduler, audit, old data."""

from __future__ import annotations

import logging
from collections.abc import Callable

from muster import store
from muster.admission import replacing, service, users_jobs
from muster.audit import stream
from muster.errors import MusterError, apart
from muster.integration import closing
from muster.model.figures import Purged
from muster.model.runs import RunKey
from muster.reporting import archive, notices

log = logging.getLogger(__name__)


def sweep_leases(is_live: Callable[[str, str], bool]) -> list[str]:
    """Release nodes whose run is over or deleted and that its teardown did not release. Returns the nodes.

    ``is_live(dag_id, run_id)``: whether the run is queued or running; false for a deleted run. Raises MusterError with
    the runs whose nodes could not be released, after those of all others are.
    """
    freed: list[str] = []
    failed: list[str] = []
    for key in sorted({(lease.dag_id, lease.run_id) for lease in store.leases.live()}):
        with apart("/".join(key), failed):
            if not is_live(*key):
                freed += closing.release(RunKey(*key), "its run was over or gone when housekeeping looked")
    if freed:
        log.warning("freed %s, whose runs were over", ", ".join(freed))
    if failed:
        raise MusterError(f"the nodes of these runs could not be released: {'; '.join(failed)}")
    return freed


def reconcile() -> list[str]:
    """Carry out the changes that wait for a scheduler, note users' jobs, and log where one differs from the records."""
    differences = [*service.reconcile(), *users_jobs.note()]
    for sentence in differences:
        log.warning("%s", sentence)
    return differences


def replace_nodes() -> list[str]:
    """Let spares take the places of nodes that left production, if the setting says so, and tell of it."""
    sentences = []
    for each in replacing.replace_nodes():
        simulated = "[simulated] " if store.nodes.get(each.spare).simulated else ""
        why = f"({each.shared}): {each.fitness.why}"
        sentence = f"{simulated}{each.spare} entered production in place of {each.gone.node} {why}"
        notices.notify(f"replaced/{each.gone.node}", sentence)
        sentences.append(sentence)
    return sentences


def stream_audit() -> dict[str, int]:
    """Send the audit stream's events that wait. Returns {receiver: how many it accepted}; logs why one did not."""
    sent = stream.deliver()
    for lag in store.audit.lags():
        if lag.last_error:
            log.warning("%s", lag.sentence)
    return sent


def apply_retention() -> Purged:
    """Remove data older than the retention times in the settings."""
    purged = store.retention.apply()
    log.info("removed %s and %d archived reports", purged, archive.expire())
    return purged
