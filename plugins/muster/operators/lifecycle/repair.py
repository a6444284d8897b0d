"""The tasks of a repair: hold the node, take evidence, carry out the next rung of the ladder, have it proved.

Each is a plain function of run ids and parameters; the DAG file makes tasks of them.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import store
from muster.admission import service
from muster.errors import MusterError
from muster.integration import logins, runid
from muster.judging import health
from muster.judging import repair as judging
from muster.model.repairs import Attempt, Fault, Incident, Outcome
from muster.model.runs import RunKey
from muster.model.schedulers import WITHDRAWN
from muster.model.states import State
from muster.operators.lifecycle import evidence
from muster.operators.testing import claims
from muster.remote import repairing
from muster.remote.evidence import Connect
from muster.reporting import notices
from muster.rules import repair as rules
from muster.rules.repair import Act, Person, Situation

log = logging.getLogger(__name__)

LATELY = datetime.timedelta(days=1)
"""How long a repair by policy may wait after the observation: a later one rests on what is seen then."""


def claim(key: RunKey, params: Mapping[str, Any]) -> int:
    """Hold the node and open the incident; returns its number. Attempts that were lost are ended, and count.

    Raises AirflowFailException for a node that is not out of service as broken, or that another run holds.
    """
    name, fault = str(params["node"]), Fault(str(params["fault"]), str(params.get("device") or ""))
    with claims.failing_at_once():
        node, ladder = store.nodes.get(name), judging.policy().ladder(str(params["fault"]))
        if ladder is None:
            raise MusterError(f"the repair policy has no ladder for {fault.fault_class}; see `muster repair --help`")
        if node.state not in rules.REPAIRABLE:
            raise MusterError(f"{name} is in {node.state}: only a node in {', '.join(rules.REPAIRABLE)} is repaired")
        store.leases.acquire(name, key)
        store.repairs.settle_lost(name)
        return store.repairs.open_incident(name, fault, str(params["reason"]), ladder.prove, ladder.level).id


def take_evidence(incident: int, connect: Connect = logins.connect) -> str:
    """Take the incident's evidence, unless it was taken; returns where it is. Without it nothing is repaired."""
    with claims.failing_at_once():
        taken = evidence.take(store.repairs.get_incident(incident), connect)
    assert taken.bundle is not None
    return taken.bundle.path


def act(key: RunKey, incident: int, connect: Connect = logins.connect, **how: Any) -> dict[str, Any]:
    """Carry out the next rung; returns {attempt, rung, outcome}. Raises AirflowSkipException if a person decides.

    Raises AirflowFailException if the rung did not succeed. A worker that is lost meanwhile leaves the attempt
    reserved; it counts, and is not carried out again when Airflow repeats the task.
    """
    found = store.repairs.get_incident(incident)
    lease = store.leases.get(found.node)
    if lease is None or lease.key != key:
        raise AirflowFailException(f"{found.node} is not held by this run, so nothing is repaired")
    if lost := store.repairs.settle_lost(found.node):
        _tell(found, f"{lost[0].rung}: {lost[0].outcome}: {lost[0].detail}")
        raise AirflowFailException(f"{lost[0].rung} of {found.node}: {lost[0].detail}")
    if found.bundle is None:
        raise AirflowFailException(f"no evidence of incident {incident} was taken, so nothing is repaired")
    step = decide(found, key, connect)
    if not isinstance(step, Act):
        _tell(found, step.why)
        raise AirflowSkipException(step.why)
    with claims.failing_at_once():
        attempt = store.repairs.reserve(incident, str(step.rung), key)
        # The scheduler's own word once more, after the reservation and immediately before the act.
        trouble = in_use(found.node)
        if trouble:
            store.repairs.settle(attempt.id, Outcome.TRANSIENT, f"it was not begun: {trouble}")
            raise MusterError(f"{found.node} is not repaired: {trouble}")
    done = repairing.carry_out(step.rung, store.nodes.get(found.node), found.fault, connect, **how)
    ended = store.repairs.settle(attempt.id, done.outcome, done.detail)
    _tell(found, f"{step.rung}: {done.outcome}: {done.detail}")
    if done.outcome is not Outcome.SUCCEEDED:
        raise AirflowFailException(f"{step.rung} of {found.node}: {done.outcome}: {done.detail}")
    return {"attempt": ended.id, "rung": str(step.rung), "outcome": str(done.outcome)}


def decide(found: Incident, key: RunKey | None, connect: Connect = logins.connect) -> rules.Act | Person | rules.Wait:
    """Returns what is done next about an incident. ``key``: the run that holds the node; None to ask without one."""
    node = store.nodes.get(found.node)
    history: list[Attempt] | None
    try:
        history = store.repairs.history(found)
    except Exception:  # what cannot be read, for whatever reason, resets no budget
        log.exception("the earlier repairs of %s cannot be read", found.node)
        history = None
    lease = store.leases.get(found.node)
    now = Situation(
        found.fault, {**node.labels, "rack": node.rack, "pool": node.pool}, history, idle=not in_use(found.node),
        leased=key is None or (lease is not None and lease.key == key), simulated=node.simulated,
        reachable=repairing.reachable(node, connect), bmc=bool(node.bmc),
    )  # fmt: skip
    return rules.next_step(now, judging.policy(), datetime.datetime.now(datetime.UTC))


def in_use(node: str) -> str:
    """Returns why a node may be in use, "" if its scheduler says that it is closed and free. Unknown is in use."""
    try:
        place = store.schedulers.place(node)
        if place is not None and (place.wanted != WITHDRAWN or place.waits):
            return "its scheduler has not confirmed that it is closed"
        found = service.allocation(node)
        return found.by or "it is allocated" if found.allocated else ""
    except MusterError as error:
        return f"whether it is in use is not known: {error}"


def proofs(done: Mapping[str, Any] | None, incident: int) -> list[dict[str, Any]]:
    """Returns the arguments of TriggerDagRunOperator for the test that can see the fault, after a success."""
    if not done:
        return []
    found = store.repairs.get_incident(incident)
    node = store.nodes.get(found.node)
    reason = f"proves the repair of incident {incident} ({done['rung']}, attempt {done['attempt']})"
    conf = {"node": node.name, "level": found.level, "reason": reason, "pool": node.pool or None}
    return [{"trigger_run_id": runid.run_id(node.name, reason), "conf": conf}]


def release(key: RunKey) -> list[str]:
    """Release the node, so that its test can take it."""
    return store.leases.release(key, "the repair is over")


def wanted() -> list[dict[str, Any]]:
    """Returns the arguments of TriggerDagRunOperator for one run of the DAG repair per node that the policies name.

    These are nodes in quarantine for an observation that a ladder knows, in a group whose mode is repair; again after
    each attempt whose tests failed.
    """
    since, policy, ladders = datetime.datetime.now(datetime.UTC) - LATELY, health.policy(), judging.policy()
    runs = []
    for node in store.nodes.find(states=(State.QUARANTINE,)):
        if policy.mode_of({**node.labels, "rack": node.rack, "pool": node.pool}) != "repair" or node.pause:
            continue
        seen = next((each for each in store.health.of_node(node.name) if each.acted == "withdrawn"), None)
        if seen is None or seen.last_seen < since or (ladder := ladders.ladder_for(seen.check)) is None:
            continue
        tried = sum(len(store.repairs.history(each)) for each in store.repairs.find(node.name, still_open=True))
        conf = {"node": node.name, "fault": ladder.fault, "device": seen.device, "reason": seen.sentence}
        reason = f"repair of observation {seen.id} after {tried} attempts"
        runs.append({"trigger_run_id": runid.run_id(node.name, reason), "conf": conf})
    return runs


def prove_all() -> list[str]:
    """Close incidents that tests prove to be repaired; returns a sentence for each."""
    nodes = {each.node for each in store.repairs.find(limit=10_000, still_open=True)}
    return [f"{name}: incident {number} is closed" for name in sorted(nodes) for number in store.repairs.prove(name)]


def _tell(found: Incident, sentence: str) -> None:
    simulated = "[simulated] " if found.simulated else ""
    where = f"; evidence: {found.bundle.path}" if found.bundle else ""
    notices.notify(
        f"repair/{found.node}/{found.id}/{sentence[:40]}",
        f"{simulated}{found.node}, incident {found.id} ({found.why}): {sentence}{where}. See `muster evidence show "
        f"{found.id}` and docs/failed-node.md",
    )
