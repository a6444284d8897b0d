"""What the controller does with the schedulers: asks whether nodes are in use, carries out changes, finds differences.

The records decide first, and queue the change in the same transaction (``store.queues.schedulers``); it is carried
out at once, or else by the housekeeping DAG. Until then the node counts as neither admitted nor idle.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping

from muster import store
from muster.admission import carrying
from muster.admission.backend import TEST_PREFIX, VERIFY, PreemptibleTests, Seen
from muster.admission.clusters import ask, backend_of
from muster.admission.differences import Do, difference_of, next_change, shown_as, why_lost
from muster.errors import LeftAlone, MusterError, NeverClosed, Preempted, SchedulerDown, apart
from muster.model.nodes import Node
from muster.model.schedulers import ADMITTED, WITHDRAWN, Place
from muster.model.states import SERVING, State
from muster.reporting import notices
from muster.rules.idle.selection import Idle
from muster.rules.lifecycle.transitions import INCONCLUSIVE_BUDGET

log = logging.getLogger(__name__)


def allocation(node: str) -> str:
    """Returns to whom or what the node is, or may be, allocated; "" if it is not. A node unknown there may be.

    Raises MusterError if its scheduler does not answer; UnknownNode.
    """
    return in_hands(node)[0]


def in_hands(node: str) -> tuple[str, str]:
    """Returns (``allocation``, who else closed the node and may be working on it: ``Seen.theirs``)."""
    seen = look([node]).get(node)
    return (seen.allocation, seen.theirs) if seen else ("perhaps: its scheduler does not know it", "")


def in_use(node: Node) -> str:
    """Returns why a revalidation must leave the node alone now, "" if it is idle.

    For a node in revalidation, only current allocations and closing by others count. Raises as ``allocation``.
    """
    if node.state is State.PRODUCTION:
        seen = idle([node.name])[node.name]
        return "" if seen.idle else seen.why
    found = look([node.name]).get(node.name)
    if found is None:
        raise SchedulerDown(f"whether {node.name} is in use is unknown: its scheduler does not know it")
    return found.taken or found.theirs  # if somebody opened it meanwhile, the test closes it first


def idle(nodes: Collection[str]) -> dict[str, Idle]:
    """Whether each node in service is unused. A scheduler that does not answer makes all of its nodes not idle."""
    leases, known, places = store.leases.holding(nodes), store.nodes.named(nodes), store.schedulers.places_of(nodes)
    answers: dict[str, Idle] = {}
    seen = look(nodes, unanswered=answers)
    for node in nodes:
        if node in answers:
            continue
        state = known[node].state if node in known else None
        if state is not State.PRODUCTION:
            answers[node] = Idle(False, f"it is in {state}")
        elif node in places and places[node].waits and not _waits_for_test(places[node], seen.get(node)):
            answers[node] = Idle(False, f"its scheduler has not carried out yet: {places[node].wanted}")
        elif node in leases:
            answers[node] = Idle(False, f"run {leases[node].run_id} of {leases[node].dag_id} holds it")
        else:
            answers[node] = seen[node].idle if node in seen else Idle(False, "its scheduler does not know it")
    return answers


def _waits_for_test(place: Place, seen: Seen | None) -> bool:
    """Whether the node's admission waits for a PASS that a person requested, or that is required since the node
    restarted: only a test can bring it about.
    """
    return place.wanted == ADMITTED and seen is not None and bool(seen.verify or seen.booted)


def look(nodes: Collection[str], unanswered: dict[str, Idle] | None = None, *, jobs: bool = True) -> dict[str, Seen]:
    """Returns the nodes as their schedulers show them, by one request per cluster. ``jobs``: as in ``ask``.

    If a cluster does not answer, or cannot be read, its nodes are added to ``unanswered``; without that, raises.
    """
    places = store.schedulers.places_of(nodes)
    by_cluster: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for node in nodes:
        cluster, name = (places[node].cluster, places[node].name) if node in places else ("", node)
        by_cluster[cluster][name] = node
    found: dict[str, Seen] = {}
    for cluster, names in by_cluster.items():
        try:
            seen = ask(cluster, names, jobs=jobs)
        except Exception as error:
            if unanswered is None:
                raise
            unanswered.update(dict.fromkeys(names.values(), Idle(False, f"whether it is idle is unknown: {error}")))
            continue
        found |= {names[name]: each for name, each in seen.items()}
    return found


def check_length(node: str, limit_s: float) -> None:
    """Raise BadScheduler if a test of up to ``limit_s`` would be a job, and its scheduler allows no job of that length;
    SchedulerDown.
    """
    place, tests = _tests_of(node)
    if place is None or tests is None:
        return
    seen = look([node]).get(node)
    if seen is not None and seen.open:
        tests.check([place.name], math.ceil(limit_s / 60))


def take_for_test(node: str, run: str, why: str, limit_s: float) -> None:
    """Take a node in service for the test ``run``: by a job that every user's job preempts, or else by closing it.

    A node that is closed already stays closed. ``limit_s``: how long the test's stages may take together. Raises as
    ``withdraw_for_test`` does, BadScheduler; SchedulerDown if the job does not start although the node is idle.
    """
    job = TEST_PREFIX + hashlib.sha256(f"{run} {node}".encode()).hexdigest()[:16]
    place, tests = _tests_of(node)
    if place is not None and place.test_job != job and (trouble := end_test(node)):
        raise SchedulerDown(f"{node} is not tested, since its last test job could not be ended: {trouble}")
    seen = look([node]).get(node) if tests else None
    if place is None or tests is None or seen is None or not seen.open:
        withdraw_for_test(node, why)
        return
    if seen.idle.idle is False:
        raise LeftAlone(f"{node} is not tested, since it is in use: {seen.idle.why}")
    # Stored first, so that the job is found and ended if this process dies after submitting it.
    store.schedulers.note_test_job(node, job)
    try:
        tests.begin(place.name, job, math.ceil(limit_s / 60))
    except LeftAlone as error:
        seen = look([node]).get(node)
        if seen is None or not seen.idle.idle:
            raise
        why = str(error).rstrip(".")
        raise SchedulerDown(f"{why}, though {place.cluster} shows it idle; find out there what keeps it") from error


def step_of_test(node: str) -> tuple[str, ...]:
    """Returns the words that run a command on the node as part of its test job; () if the test is no job.

    Without a job, a node in service has to be closed. Raises Preempted if the job is over, or the node is open without
    one; LeftAlone if others have taken the node, which has no job, since its test began; SchedulerDown.
    """
    place, tests = _tests_of(node)
    if place is None:
        return ()
    if tests is None or not place.test_job:
        unanswered: dict[str, Idle] = {}
        seen = look([node], unanswered).get(node)
        if place.test_job or place.state in SERVING:
            # The job was ended, or somebody opened the node: do not close it while a user's job may run on it.
            if place.wanted == ADMITTED or (seen is not None and seen.open):
                store.schedulers.note_test_job(node, place.test_job, preempted=True)
                raise Preempted(f"the test of {node} is over: {place.cluster} may run jobs of users on it")
            if seen is None and not unanswered:
                raise _unknown(place)
            if place.waits and (trouble := carry_out(node)):
                raise SchedulerDown(f"{node} is not tested, since its withdrawal is not confirmed: {trouble}")
        if seen is not None and seen.taken:
            raise LeftAlone(f"{node} is not tested, since it is in use: {seen.taken}")
        return ()
    words = tests.step(place.test_job)
    if words is not None:
        return words
    store.schedulers.note_test_job(node, place.test_job, preempted=True)
    raise Preempted(f"the test of {node} was preempted: {place.cluster} took the node back for another job")


def preempted(node: str) -> bool:
    """Whether the test of the node was a job that its scheduler ended. Unknown counts as no."""
    place = store.schedulers.place(node)
    if place is not None and place.preempted:
        return True
    try:
        step_of_test(node)
    except Preempted:
        return True
    except LeftAlone:  # it is no job, and others have the node
        return False
    except MusterError as error:
        log.warning("whether the test of %s was preempted is unknown: %s", node, error)
    return False


def end_test(node: str, job: str | None = None) -> str:
    """End the node's test job, if it has one; ``reconcile`` repeats this until the scheduler has confirmed it.

    ``job``: end only this one, as another run may have taken the node since. Returns why it may still run, "" if not.
    """
    place = store.schedulers.place(node)
    if place is None or job not in (None, place.test_job) or not (place.test_job or place.preempted):
        return ""
    try:
        if place.test_job and (tests := backend_of(place.cluster).tests):
            tests.end(place.test_job)
    except MusterError as error:
        log.warning("the test job of %s is ended later: %s", node, error)
        return str(error)
    store.schedulers.forget_test_job(node, place.test_job)
    return ""


def _tests_of(node: str) -> tuple[Place | None, PreemptibleTests | None]:
    place = store.schedulers.place(node)
    return place, backend_of(place.cluster).tests if place else None


def tested_by_job(node: str) -> bool:
    """Whether a test of this serving node is a preemptible job; False if its scheduler's settings are faulty."""
    try:
        place, tests = _tests_of(node)
    except MusterError:
        return False
    return place is not None and place.wanted == ADMITTED and tests is not None


def withdraw_for_test(node: str, why: str) -> None:
    """Close a node in service before a test. Raises MusterError unless its scheduler has confirmed it and it is free.

    When the caller releases the node, the scheduler gets it back.
    """
    for again in (False, True):  # second pass: it was withdrawn before, and somebody opened it
        store.schedulers.withdraw_for_test(node, why, again=again)
        if trouble := carry_out(node):
            raise SchedulerDown(f"{node} is not tested, since it could not be withdrawn: {trouble}")
        seen, place = look([node]).get(node), store.schedulers.place(node)
        if seen is None and place:
            raise _unknown(place)
        if not (seen and seen.open and place and place.wanted == WITHDRAWN):
            break
    if place and place.wanted != WITHDRAWN and not (seen and seen.foreign):
        raise NeverClosed(
            f"{node} is not tested, since it is in shadow mode: Muster does not close it in {place.cluster}"
        )
    if seen is not None and place and seen.taken:
        # A job or maintenance began between the look and the drain: the node is tested another time.
        raise LeftAlone(f"{node} is not tested, since it is in use: {seen.taken}")


def _unknown(place: Place) -> SchedulerDown:
    """Returns the error for a node that its cluster does not know: it may be open there under another name."""
    return SchedulerDown(f"{place.node} is not tested, since {place.cluster} does not know {place.name}")


def carry_out(node: str) -> str:
    """Carry out the change that waits for the node, if any. Returns why it still waits, "" if nothing does."""
    return carrying.attempt(node)[0]


def reconcile() -> list[str]:
    """Carry out what waits, in order, then look for differences. Returns a sentence for each that remains.

    If a cluster does not answer, its remaining changes wait for the next call. So do admissions of nodes that are down
    or in maintenance, which are not tried, and all other admissions once failing ones took ``carrying.FAILING_S``. An
    error in one place does not keep others waiting. Raises DatabaseNotReady.
    """
    down: dict[str, str] = {}
    failed: list[str] = []
    places = store.schedulers.places()  # before the leases: a run that begins now has another job
    leased = {lease.node for lease in store.leases.live()}
    for place in places:
        # The run of this test job is over, or its process died.
        if place.test_job and place.node not in leased and place.cluster not in down:
            with apart(place.node, failed):  # the node may be removed meanwhile
                if end_test(place.node, place.test_job):
                    down |= _down_now(place)
    waiting = store.schedulers.places(waiting=True)
    _carry_out_all([each for each in waiting if each.wanted != ADMITTED], down, failed)
    admissions = [each for each in waiting if each.wanted == ADMITTED and each.cluster not in down]
    away = _away(admissions)
    _carry_out_all([each for each in admissions if each.node not in away], down, failed, carrying.FAILING_S)
    return [*failed, *_differences(store.schedulers.places(), down)]


def _carry_out_all(
    places: Iterable[Place], down: dict[str, str], failed: list[str], failing_s: float = math.inf
) -> None:
    for place in places:
        if place.cluster not in down and failing_s > 0:
            began = time.monotonic()
            with apart(place.node, failed):
                trouble, by_scheduler = carrying.attempt(place.node)
                failing_s -= time.monotonic() - began if trouble else 0.0
                if trouble and by_scheduler:
                    down |= _down_now(place)


def _away(places: Iterable[Place]) -> set[str]:
    """The nodes that their schedulers show down or in maintenance, by one request per cluster; without those that a
    test since their start lets open.
    """
    found: set[str] = set()
    for cluster, members in _by_cluster(places).items():
        with contextlib.suppress(Exception):  # the change of one node, a smaller request, will show what is wrong
            seen = ask(cluster, {each.name for each in members}, jobs=False)
            shown = {each.node: seen[each.name] for each in members if each.name in seen}
            found |= {node for node, each in shown.items() if each.apart and not _is_proved(node, each)}
    return found


def _is_proved(node: str, seen: Seen) -> bool:
    certificate = store.certificates.newest(node) if seen.booted else None
    return certificate is not None and seen.proved(certificate.tested_since)


def _by_cluster(places: Iterable[Place]) -> dict[str, list[Place]]:
    found: dict[str, list[Place]] = collections.defaultdict(list)
    for place in places:
        found[place.cluster].append(place)
    return found


def _down_now(place: Place) -> dict[str, str]:
    """Returns {cluster: why} if the place's cluster does not answer, else {}."""
    try:
        ask(place.cluster, [place.name], jobs=False)
    except Exception as error:
        return {place.cluster: str(error)}
    return {}


def _differences(places: Iterable[Place], down: Mapping[str, str]) -> Iterable[str]:
    for cluster, members in _by_cluster(places).items():
        if cluster in down:
            yield f"{cluster} does not answer: {down[cluster]}"
            continue
        seen: Mapping[str, Seen] = {}
        broken: list[str] = []
        with apart(cluster, broken):
            seen = ask(cluster, {place.name for place in members}, jobs=False)
        if broken:
            yield from broken
            continue
        for place in members:
            found: list[str] = []
            with apart(place.node, found):
                found.extend(_compare(place, seen))
            yield from found


def _compare(place: Place, seen: Mapping[str, Seen]) -> Iterable[str]:
    shown = seen.get(place.name)
    lost = why_lost(place, shown)
    difference = difference_of(place, shown) or lost
    verify = shown if shown is not None and shown.verify else Seen(open=True)
    now = (shown_as(shown), difference, verify.foreign, verify.foreign_since)
    if now != (place.shown, place.difference, place.verify, place.verify_since):
        at_work = shown.worked_on if shown else difference if place.known else ""  # one that it never knew may crash
        store.schedulers.note_seen(place.node, *now, worked_on=at_work)
    if difference:
        yield f"{place.node}: {difference}"
    if verify.foreign:
        _ask_about_request(place.node)
    match next_change(place, shown, lost):
        case Do.NOTHING:
            return
        case Do.OPEN:
            store.schedulers.let_open(place.node)
        case Do.CLOSE_AGAIN:
            with store.engine.transaction():  # no person is asked unless the mail is queued
                question = store.schedulers.drain_again(place.node)
                if question and question != place.question:
                    notices.notify(f"drained again/{place.node}/{place.wanted_at}", question, of=place.node)
            if question is None:
                return
        case Do.NEW_REASON:
            store.schedulers.renew_reason(place.node)
        case Do.MARK_AGAIN:
            store.schedulers.mark_again(place.node)
    carry_out(place.node)


def _ask_about_request(node: str) -> None:
    """Ask the person whose drain requests a test, once INCONCLUSIVE_BUDGET tests ended without opening the node."""
    place = store.schedulers.place(node)
    if place is None or place.question or place.verify_since is None or place.state not in SERVING:
        return
    count = store.signs.tests_since(node, place.verify_since)
    if count < INCONCLUSIVE_BUDGET:
        return
    question = (
        f"{node} was closed in {place.cluster} for a test ({place.verify}), and {count} tests since then gave no PASS "
        f"that opens it: see `muster node show {node}`, remove the cause, and close it again with {VERIFY}, or open it"
    )
    with store.engine.transaction():
        if store.schedulers.ask_about_request(node, question):
            notices.notify(f"request not answered/{node}/{place.verify_since}", question, of=node)
