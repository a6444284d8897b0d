"""Periodic tasks, independent of runs: leases of ended runs, changes that wait for a scheduler, audit, old data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from muster import store
from muster.admission import service, users_jobs
from muster.audit import stream
from muster.errors import MusterError, apart
from muster.integration import closing
from muster.model import dags
from muster.model.runs import RunKey
from muster.reporting import archive, notices
from muster.settings import settings
from muster_reports import text

log = logging.getLogger(__name__)

ASKED_TOGETHER = 100
"""Runs per query to Airflow: nearly all of them are live. Their ids are part of one URL, of about 8 KB at most."""


def known_here(count: Callable[[str, Sequence[str]], int]) -> None:
    """Raise MusterError if this Airflow knows none of the runs that hold nodes, or does not say whether it does.

    ``count``: how many of these runs it knows.
    """
    silent: list[str] = []
    for dag_id, run_ids in _holding():
        with apart(f"{dag_id}/{run_ids[0]}" + (f" and {len(run_ids) - 1} more" if run_ids[1:] else ""), silent):
            if count(dag_id, run_ids):
                return
    if silent:
        raise MusterError(f"Airflow does not say whether it knows these runs: {'; '.join(silent)}")
    closing.refuse_another_airflow(0, len({lease.key for lease in store.leases.live()}))


def _holding() -> Iterator[tuple[str, list[str]]]:
    return _together(sorted({lease.key for lease in store.leases.live()}))


def _together(keys: Sequence[RunKey]) -> Iterator[tuple[str, list[str]]]:
    """Yields (DAG id, up to ``ASKED_TOGETHER`` run ids), until all ``keys`` are covered."""
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(key.dag_id, []).append(key.run_id)
    for dag_id, run_ids in found.items():
        for start in range(0, len(run_ids), ASKED_TOGETHER):
            yield dag_id, run_ids[start : start + ASKED_TOGETHER]


def sweep_leases(live: Callable[[str, Sequence[str]], int]) -> list[str]:
    """Release nodes whose run is over or deleted, if its teardown did not. As in the teardown, the run's jobs are
    stopped first. Returns the nodes.

    ``live(dag_id, run_ids)``: how many of these runs are queued or running; a deleted run is not. Raises MusterError
    with the runs whose nodes could not be released, after those of all others are.
    """
    from muster.operators.testing import leftovers

    freed: list[str] = []
    failed: list[str] = []
    until = time.monotonic() + leftovers.STOPPING_S
    for dag_id, run_ids in _holding():
        over = _over(dag_id, run_ids, live, failed)
        for run_id in over:
            with apart(f"{dag_id}/{run_id}", failed):
                leftovers.stop(RunKey(dag_id, run_id), until)
        for run_id in _over(dag_id, over, live, failed):  # a person may have cleared one meanwhile
            with apart(f"{dag_id}/{run_id}", failed):
                key = RunKey(dag_id, run_id)
                freed += closing.release(key, "its run was over or gone when housekeeping looked")
    if freed:
        log.warning("freed %s, whose runs were over", ", ".join(freed))
    if failed:
        raise MusterError(f"the nodes of these runs could not be released: {'; '.join(failed)}")
    return freed


def end_questions(
    live: Callable[[str, Sequence[str]], int], known: Callable[[str, Sequence[str]], int]
) -> list[RunKey]:
    """Drop the questions whose run is over or deleted, since no answer can come; returns their runs.

    ``live``: as of ``sweep_leases``; ``known``: how many of these runs Airflow knows. If it knows none of several, they
    may belong to another Airflow, and stay until they time out. Raises MusterError with the runs of which Airflow does
    not say whether they are live, after all others are dropped.
    """
    asked, failed = store.questions.unanswered(), list[str]()
    over = [
        RunKey(dag_id, run_id)
        for dag_id, run_ids in _together(sorted(asked))
        for run_id in _over(dag_id, run_ids, live, failed)
    ]
    if len(over) == len(asked) > 1 and not any(known(dag_id, run_ids) for dag_id, run_ids in _together(over)):
        return []
    ended = [key for key in over if store.questions.drop(key, asked[key])]
    if failed:
        raise MusterError(f"whether these runs still ask is not known: {'; '.join(failed)}")
    return ended


def report_ended(live: Callable[[str, Sequence[str]], int]) -> list[RunKey]:
    """Report the runs that are over and were not reported, as their own task would have; returns them.

    Such a run was marked, deleted, or ended by housekeeping. ``live``: as of ``sweep_leases``. Raises MusterError with
    the runs that could not be reported, after all others. Stops after ``leftovers.STOPPING_S``; the next call goes on.
    """
    from muster.operators.testing import block, leftovers, qualification

    failed: list[str] = []
    done: list[RunKey] = []
    until = time.monotonic() + leftovers.STOPPING_S
    for dag_id, run_ids in _together(store.reporting.unreported()):
        report = block.report if dag_id == dags.CLUSTER_QUALIFICATION else qualification.report
        for run_id in _over(dag_id, run_ids, live, failed):
            if time.monotonic() > until:
                break
            with apart(f"{dag_id}/{run_id}", failed):
                report(RunKey(dag_id, run_id))
                done.append(RunKey(dag_id, run_id))
    if failed:
        raise MusterError(f"these runs could not be reported: {'; '.join(failed)}")
    return done


def _over(
    dag_id: str, run_ids: Sequence[str], live: Callable[[str, Sequence[str]], int], failed: list[str]
) -> list[str]:
    """Returns the runs that are not live. Asks about all at once, and about each half where only some are."""
    if not run_ids:
        return []
    unknown: list[str] = []
    with apart(f"{dag_id}/{run_ids[0]}", unknown):
        count = live(dag_id, run_ids)
        if count == len(run_ids):
            return []
        if not count:
            return list(run_ids)
    if len(run_ids) == 1:  # unknown which of several
        failed += unknown
        return []
    half = len(run_ids) // 2
    return _over(dag_id, run_ids[:half], live, failed) + _over(dag_id, run_ids[half:], live, failed)


def reconcile() -> list[str]:
    """Carry out the changes that wait for a scheduler, note users' jobs, and log where one differs from the records."""
    differences = [*service.reconcile(), *users_jobs.note()]
    for sentence in differences:
        log.warning("%s", sentence)
    return differences


def replace_nodes() -> list[str]:
    """Let each proposed spare that the gate admits enter production, if MUSTER_REPLACE_BY_ITSELF allows it."""
    sentences = []
    for each in store.replacing.proposals() if settings().replace_by_itself else ():
        if not each.fitness.admitted:
            log.info("%s %s", each.spare, each.sentence)
            continue
        place = f"in place of {each.gone.node}{each.near}"
        sentence = f"{each.spare} entered production {place}: {each.fitness.why}"
        try:
            with store.engine.transaction():  # no node enters production unless its mail is queued
                store.replacing.admit(each)
                notices.notify(f"replaced/{each.gone.node}/{each.spare}", sentence, of=each.spare)
        except MusterError as error:  # the next look decides again
            log.warning("%s", error)
            continue
        if trouble := service.carry_out(each.spare):
            log.warning("%s: its scheduler gets the change later: %s", each.spare, trouble)
        sentences.append(f"{text.mark(store.nodes.get(each.spare).simulated)}{sentence}")
    return sentences


def stream_audit() -> dict[str, int]:
    """Send the audit stream's events that wait. Returns {receiver: how many it accepted}; logs why one did not."""
    sent = stream.deliver()
    for lag in store.audit.lags():
        if lag.last_error:
            log.warning("%s", lag.sentence)
    return sent


def apply_retention(*, dry_run: bool = False) -> dict[str, int]:
    """Remove records and archived reports older than the retention times in the settings, or only count them.

    Returns {kind: how many}.
    """
    purged = store.retention.apply(dry_run=dry_run)
    bundles = [each.bundle.path for each in store.repairs.find(still_open=True) if each.bundle]
    purged["reports"] = archive.expire(store.retention.agreed_now(), bundles, dry_run=dry_run)
    log.info("%s %s", "would remove" if dry_run else "removed", purged)
    return purged
