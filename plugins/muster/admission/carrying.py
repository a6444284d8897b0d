"""Carries out one change of a node in its scheduler, or says why it waits."""

from __future__ import annotations

import datetime
import functools
import logging

from muster import redaction, store
from muster.admission.backend import AdmissionBackend, Mark
from muster.admission.clusters import backend_of, unreadable
from muster.errors import LeftAlone, MusterError
from muster.judging import policies
from muster.model.schedulers import ADMITTED, Place
from muster.model.states import SERVING, State
from muster.reporting import notices
from muster.rules.service import health as rules
from muster.settings import settings
from muster_criteria.context.suspicion import METRICS as CORRUPTION
from muster_criteria.model import Severity
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stages import STAGES

log = logging.getLogger(__name__)

CHANGES_MAX = 3
"""How many changes one call carries out, if each is superseded meanwhile."""

FAILING_S = 60.0
"""Maximum time (s) that one pass spends on failing admissions: an unreachable host costs 10 s."""


def attempt(node: str) -> tuple[str, bool]:
    """Carry out the change that waits for the node, if any.

    Returns why it still waits, "" if nothing does, and whether its scheduler may be down.
    """
    for _ in range(CHANGES_MAX):
        change = store.schedulers.claim(node)
        if change is None:
            place = store.schedulers.place(node)
            return "another process carries it out now" if place and place.waits else "", False
        error, lifted, left_alone = _carry_out(change)
        error = redaction.of_text(error)  # pages and logs show it
        store.schedulers.carried_out(change, error, lifted)
        if error:
            log.warning("%s: %s in %s waits: %s", node, change.wanted, change.cluster, error)
            return error, not left_alone
    return "it changed several times meanwhile", False


def _carry_out(change: Place) -> tuple[str, str, bool]:
    """Returns (why the change still waits, "" if it is carried out; our drain that it lifted; whether the node is left
    alone because of its state in the scheduler).
    """
    lifted = ""
    try:
        backend = backend_of(change.cluster)
        if change.wanted == ADMITTED:
            mark = mark_of(change.node)
            if change.held_since and not (mark.tested_since and mark.tested_since > change.held_since):
                return change.held, "", True
            _check_nothing_failed(change.node)
            if not change.test_job:  # a test job gives way by itself
                _end_tests(change.node)
            lifted = backend.admit(change.name, mark, change.wanted_at)
        else:
            for_good = change.state is State.RETIRED
            backend.withdraw(change.name, change.why, change.wanted_at, for_good=for_good)
            _end_corrupted_jobs(change, backend)
    except MusterError as error:
        return str(error), "", isinstance(error, LeftAlone)
    except Exception as error:
        log.exception("%s: its change in %s waits", change.node, change.cluster)
        return unreadable(change.cluster, error), "", False
    return "", lifted, False


def _check_nothing_failed(node: str) -> None:
    """Raise LeftAlone if an open observation, one of this node alone, requires it to leave service.

    Its scheduler may have been unreachable since the admission, and the next health sweep is minutes away.
    """
    now = store.clock.now()
    if not rules.due(store.health.open_in_service(now - rules.EVENTS_FOR, node), {node}):
        return  # the look at all nodes below is slower
    seen = store.health.open_in_service(now - rules.EVENTS_FOR)
    shared = rules.common(seen, store.nodes.find(states=SERVING), policies.health())
    if due := rules.due(rules.theirs(seen, shared), {node}).get(node):
        raise LeftAlone(f"{node} is not opened, since it is to leave service: {due.sentence}")


def _end_tests(node: str) -> None:
    """Stop what tests left running on a node that is to be opened, as when SSH failed at the run's end.

    Raises LeftAlone if that fails, but not after the time by which the node side has ended by itself.
    """
    from muster.integration import logins
    from muster.remote.job import attempt, outcome

    for job in store.runs.find_jobs(None, {outcome.RUNNING, outcome.UNSEEN}, node=node):
        if not job.remote_dir or job.started_at is None:
            continue
        try:
            sku = load_sku(store.nodes.get(node).sku, settings().sku_folders)
            limit_s = programme.test_limit_s(sku, STAGES, store.runs.get(job.key, node=node).level)
        except SkuError as error:
            log.warning("%s: until when run %s may load it is unknown: %s", node, job.run_id, error)
            continue  # otherwise even an old job would keep it closed
        until = job.started_at + datetime.timedelta(seconds=limit_s)
        if until < store.clock.now():
            continue
        try:
            attempt.stop_leftovers(job.key, functools.partial(logins.connect, attempts=1), node=node)
        except MusterError as error:
            raise LeftAlone(
                f"{node} is not opened: a test of run {job.run_id} may load it until {until:%H:%M, %d %B} UTC, and "
                f"cannot be stopped: {error}"
            ) from error


def _end_corrupted_jobs(change: Place, backend: AdmissionBackend) -> None:
    """End users' jobs on a node in quarantine for corrupted data, if the cluster's settings enable it; mail each."""
    if backend.end_jobs is None or change.state is not State.QUARANTINE:
        return
    found = [each.finding for each in store.verdicts.open_findings(change.node) if not each.finding.waived]
    corrupts = any(each.metric in CORRUPTION and each.severity is Severity.CRITICAL for each in found)
    if not corrupts and store.health.corrupting(change.node) is None:
        return
    for job in backend.end_jobs(change.name):
        sentence = f"job {job} was ended on it, since it corrupts data (end_corrupted_jobs of {change.cluster})"
        with store.engine.transaction():
            store.schedulers.note_ended_job(change.node, sentence)
            notices.notify(f"ended job {job}/{change.node}", f"{change.node}: {sentence}", of=change.node)


def mark_of(node: str) -> Mark:
    """Returns what the admission shows with the node. Raises LeftAlone if the node has no certificate."""
    found = store.certificates.newest(node)
    if found is None:
        raise LeftAlone(f"{node} has no certificate: admit it, or test it again")
    shown, since = ("revoked", found.revoked_at) if found.revoked else (found.verdict, None)
    return Mark(shown, (since or found.issued_at).date(), found.id, found.tested_since)
