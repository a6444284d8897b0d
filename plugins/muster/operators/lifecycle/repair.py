"""The tasks of a repair: hold the node, take evidence, carry out the next rung of the ladder, start the proving test.

Each is a plain function of run ids and parameters; the DAG file makes tasks of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import store
from muster.admission import service
from muster.admission.backend import VERIFY
from muster.errors import IllegalMove, MusterError, NodeLeased, NodePaused, Refusal, apart, first_line
from muster.integration import closing, logins, runid
from muster.judging import policies
from muster.model import dags
from muster.model.health import Observation, observation_of
from muster.model.nodes import Node
from muster.model.repairs import NOTHING_READ, Attempt, Fault, Incident, Outcome
from muster.model.runs import RunKey
from muster.model.schedulers import WITHDRAWN
from muster.model.states import State
from muster.operators.lifecycle import evidence
from muster.operators.testing import claims
from muster.remote import repairing
from muster.remote.connection.ssh import Connect
from muster.remote.job.zipapp import build_agent
from muster.remote.repairing import Sent
from muster.reporting import notices
from muster.rules.service import repair as rules
from muster.rules.service.repair import Act, Person, Situation, Wait
from muster.settings import settings
from muster_criteria.repair.ladder import Rung
from muster_criteria.sku_files.model import SkuError
from muster_reports import text

log = logging.getLogger(__name__)

EVENTS_MAX = 1000
"""Events searched for a node's last move; if more remarks followed it, no repair begins by itself."""


def claim(key: RunKey, params: Mapping[str, Any]) -> int:
    """Hold the node and open the incident; returns its number. Attempts that were lost are ended, and count.

    Raises AirflowFailException if the node is in no repairable state, its fault has no ladder, its tests are paused or
    another run holds it; AirflowSkipException for a run of the sweep that the sweep would not start any more, as when a
    person has taken the node.
    """
    name = str(params["node"])
    swept = runid.is_of_pick(key.run_id, name)
    fault = Fault(str(params["fault"]), str(params.get("device") or ""), str(params.get("part") or ""))
    with claims.failing_at_once():
        claims.refuse_unknown(params, "node", "fault", "device", "part", "reason")
        ladder = policies.repair().ladder(str(params["fault"]))
        if ladder is None:
            raise MusterError(f"the repair policy has no ladder for {fault.fault_class}; see `muster repair --help`")
        try:
            with claims.leased([name], key):
                store.repairs.settle_lost(name)
                node = store.nodes.get(name)
                if swept and not (_by_itself(node) and any(each.same(fault) for _, each, _ in _faults(node))):
                    raise AirflowSkipException(
                        f"{name} is not repaired: the sweep would not begin this repair any more"
                    )
                if node.state not in rules.REPAIRABLE:
                    at = ", ".join(rules.REPAIRABLE)
                    raise MusterError(f"{name} is in {node.state}: only a node in {at} is repaired")
                return store.repairs.open_incident(name, fault, str(params["reason"]), ladder.prove, ladder.level).id
        except (NodeLeased, NodePaused) as error:
            if swept:
                raise AirflowSkipException(f"{name} is not repaired: {error}") from error
            raise


def take_evidence(incident: int, connect: Connect = logins.connect) -> str:
    """Take the incident's evidence, unless it was already taken from the node; returns the bundle's path.

    Without evidence from the node, only a power cycle is carried out. Raises AirflowFailException if the evidence
    cannot be kept, as on a full disk; a person is then asked, and until the repair is resumed the sweep starts no other
    run, which would fail in the same way.
    """
    found = store.repairs.get_incident(incident)
    try:
        taken = evidence.take(found, connect)
    except (MusterError, SkuError) as error:
        log.error("%s", error)
        _ask(found, f"nothing is repaired without evidence: {error}")
        raise AirflowFailException(str(error)) from None
    assert taken.bundle is not None
    return taken.bundle.path


def act(key: RunKey, incident: int, connect: Connect = logins.connect) -> dict[str, Any]:
    """Carry out the next rung; returns {attempt, rung} for display. Raises AirflowSkipException if nothing is done now.

    Raises AirflowFailException if the rung did not succeed. A worker that is lost meanwhile leaves the attempt
    reserved; it counts, and is not carried out again when Airflow repeats the task.
    """
    found = store.repairs.get_incident(incident)
    lease = store.leases.get(found.node)
    if lease is None or lease.key != key:
        raise AirflowFailException(f"{found.node} is not held by this run, so nothing is repaired")
    _ended(found, lambda: store.repairs.settle_lost(found.node))
    if found.bundle is None:
        raise AirflowFailException(f"no evidence of incident {incident} was taken, so nothing is repaired")
    step = decide(found, key, connect)
    if isinstance(step, Wait):
        _wait(found, step)
        raise AirflowSkipException(step.why)
    if isinstance(step, Act) and step.rung is not Rung.POWER_CYCLE and found.bundle.blank:
        why = next((each for each in found.bundle.missing if each != NOTHING_READ), "the node was not reached")
        step = Person(f"its evidence has nothing of the node, which a repair may destroy ({why})")
    if isinstance(step, Person):
        _ask(found, step.why)
        raise AirflowSkipException(step.why)
    with claims.failing_at_once():
        try:
            attempt = store.repairs.reserve(incident, str(step.rung), key, policies.repair().together)
        except IllegalMove as error:
            if error.code is Refusal.TOGETHER:  # others were quicker; the next sweep asks again
                store.repairs.wait(incident, str(error))
                raise AirflowSkipException(str(error)) from None
            raise
        # Once more, after the reservation and immediately before the act.
        node = store.nodes.get(found.node)
        paused = f"its tests are {node.pause}" if node.pause else ""
        asks = step.rung is not Rung.POWER_CYCLE or repairing.reachable(node, connect)
        if trouble := paused or "; ".join(filter(None, allocated(node, key))) or (used(node, connect) if asks else ""):
            _settle(found, attempt, Outcome.TRANSIENT, f"it was not begun: {trouble}")
    last_boot, serial = _last_boot(found), store.parts.system_serial(node.name)
    agent = build_agent(settings().home / "agents") if node.simulated else None
    done = repairing.carry_out(step.rung, node, found.fault, connect, last_boot=last_boot, agent=agent, serial=serial)
    if isinstance(done, Sent):
        store.repairs.order(attempt.id, done.before, done.what)
    else:
        _settle(found, attempt, done.outcome, done.detail)
    return {"attempt": attempt.id, "rung": str(step.rung)}


def returned(key: RunKey, incident: int, connect: Connect = logins.connect, **how: Any) -> bool:
    """Check once whether the node came back after the restart that this run ordered; False while it still may.

    Reads the records and no XCom, which anyone who may start a run may write. Raises AirflowFailException if the node
    did not come back, or if this run ordered nothing.
    """
    found = store.repairs.get_incident(incident)
    attempt = _attempt(key, found)
    if attempt is not None and attempt.outcome is Outcome.SUCCEEDED:
        return True
    if attempt is None or attempt.outcome is not None or attempt.ordered_at is None:
        raise AirflowFailException(f"this run has ordered nothing at incident {incident} that could succeed yet")
    sent, waited_s = Sent(attempt.before, attempt.ordered), (store.clock.now() - attempt.ordered_at).total_seconds()
    done = repairing.returned(store.nodes.get(found.node), connect, sent, waited_s, **how)
    if done is None:
        return False
    _settle(found, attempt, done.outcome, done.detail)
    return True


def _attempt(key: RunKey, found: Incident) -> Attempt | None:
    """The run's last attempt at the incident."""
    ours = [each for each in store.repairs.history(found) if each.run == key and each.incident == found.id]
    return max(ours, key=lambda each: each.id, default=None)


def decide(found: Incident, key: RunKey | None, connect: Connect | None = logins.connect) -> Act | Person | Wait:
    """Returns what is done next about an incident. ``key``: the run that holds the node; None to ask without one.

    ``connect``: None to ask the node's scheduler and not the node, which is taken to be reachable.
    """
    node = store.nodes.get(found.node)
    history: list[Attempt] | None
    try:
        history = store.repairs.history(found)
    except Exception:  # an unreadable history must not reset a budget
        log.exception("the earlier repairs of %s cannot be read", found.node)
        history = None
    lease = store.leases.get(found.node)
    reachable = connect is None or repairing.reachable(node, connect)
    why, closed = allocated(node, key)
    idle: bool | None = not why
    if idle and not reachable and store.schedulers.place(node.name) is None:
        idle = None  # neither a scheduler nor the node itself says so
    now = situation(
        node, found.fault, history, idle=idle, allocated=why, closed=closed, reachable=reachable,
        used=used(node, connect) if connect and idle and reachable else "",
        leased=key is None or (lease is not None and lease.key == key),
    )  # fmt: skip
    return rules.next_step(now, policies.repair(), store.clock.now())


def situation(node: Node, fault: Fault, history: Sequence[Attempt] | None, **seen: Any) -> Situation:
    """What is known when a repair of the node is chosen. ``seen``: what its scheduler and the node itself say."""
    return Situation(
        fault, {**node.labels, "rack": node.rack, "pool": node.pool}, history, paused=str(node.pause or ""),
        simulated=node.simulated, shadow=node.shadow, bmc=bool(node.bmc), others=store.repairs.under_way(node.name),
        **seen,
    )  # fmt: skip


def allocated(node: Node, key: RunKey | None) -> tuple[str, str]:
    """Returns (why the node may be in use, who else closed it). The first is "" if its scheduler shows it closed and
    free; unknown counts as in use. The second is also "" for a run that a person started (``key``).
    """
    try:
        place = store.schedulers.place(node.name)
        if place is not None and (place.wanted != WITHDRAWN or place.waits):
            return "its scheduler has not confirmed that it is closed", ""
        why, closed = service.in_hands(node.name)
    except MusterError as error:
        return f"whether it is in use is not known: {error}", ""
    ordered = key is not None and not runid.is_of_pick(key.run_id, node.name)
    return why, f"{closed}; lift that, or write {VERIFY} into its reason" if closed and not ordered else ""


def used(node: Node, connect: Connect) -> str:
    """Returns what runs on the node and uses it, or why that cannot be read; "" if nothing does."""
    if node.simulated:
        return ""
    try:
        return repairing.usage(node, connect, build_agent(settings().home / "agents"))
    except MusterError as error:
        return f"whether the node is in use is not known: {error}"


def proofs(key: RunKey, incident: int) -> list[dict[str, Any]]:
    """Returns the TriggerDagRunOperator arguments of the test that can detect the fault; [] without a success."""
    found = store.repairs.get_incident(incident)
    attempt = _attempt(key, found)
    if attempt is None or attempt.outcome is not Outcome.SUCCEEDED:
        return []
    node = store.nodes.get(found.node)
    reason = f"proves the repair of incident {incident} ({attempt.rung}, attempt {attempt.id})"
    asked = {"node": node.name, "level": found.level, "reason": reason, "pool": node.pool or None}
    conf = claims.beginning_within(store.repairs.PROOF_BEGINS, asked)
    return [{"trigger_run_id": runid.run_id(node.name, reason), "conf": conf}]


def release(key: RunKey) -> list[str]:
    """Release the node, so that its test can take it; an attempt whose worker was lost is ended."""
    return closing.release(key, "the repair is over")


def wanted() -> list[dict[str, Any]]:
    """Returns the arguments of TriggerDagRunOperator for one run of the DAG repair per node that the policies name.

    Chosen are nodes in quarantine, in a group whose mode is repair, with an open incident or an observation that has a
    ladder. Left out are nodes that a run holds, that have to wait, or about whose repair or rack a person decides. At
    most ``MAPPED_MAX``, those that left service first; the others follow with the next sweep.
    """
    held, pick = {lease.node for lease in store.leases.live()}, f"{store.clock.now():%Y-%m-%d %H:%M}"
    runs: list[dict[str, Any]] = []
    for node in store.nodes.find(states=(State.QUARANTINE,)):
        if node.name in held or not _by_itself(node):
            continue
        with apart(node.name, []):
            if (conf := _next_fault(node)) is not None:
                run_id = runid.of_pick(node.name, "repair", pick)
                runs.append({"trigger_run_id": run_id, "conf": {"node": node.name, **conf}})
    if len(runs) > dags.MAPPED_MAX:
        since = {row.node: row.state_since or store.clock.now() for row in store.overview.rows()}
        runs.sort(key=lambda each: since[each["conf"]["node"]])
    return runs[: dags.MAPPED_MAX]


def unless_paused(runs: list[dict[str, Any]], paused: Callable[[], bool]) -> list[dict[str, Any]]:
    """Returns the runs to start: none while their DAG is paused, since each sweep would queue another run per node, nor
    if Airflow does not say whether it is. The reason is logged; the sweep does not fail.
    """
    try:
        why = "it is paused" if runs and paused() else ""
    except Exception as error:
        why = f"whether it is paused is not known: {first_line(error)}"
    if why:
        log.warning("no run of the DAG %s is started for %s: %s", dags.REPAIR, text.plural(len(runs), "node"), why)
    return [] if why else runs


def _by_itself(node: Node) -> bool:
    """Whether the policies let the node be repaired without a person, and no person is handling it or its rack."""
    mode = policies.health().mode_of({**node.labels, "rack": node.rack, "pool": node.pool})
    if mode != "repair" or node.state is not State.QUARANTINE or node.pause or node.shadow:
        return False
    return (node.rack, node.simulated) not in {(each.rack, each.simulated) for each in store.racks.held()}


def _next_fault(node: Node) -> dict[str, str] | None:
    """Returns the conf of a run of the DAG repair for the node; None if none is to begin now.

    If an open incident is not why the node is out of service, a person is asked about it, once. A question about one
    incident does not stop the repair of another fault, but does stop that of the same fault, even if the slot holds
    another part by now.
    """
    known = _open(node)
    for found, fault, why in _faults(node):
        if found and found.bundle is not None and isinstance(step := decide(found, None, None), Wait):
            _wait(found, step)
            continue
        return {"fault": fault.fault_class, "device": fault.device, "part": fault.part, "reason": why}
    if known and not known[0].stopped and not any(store.repairs.out_for(each) for each in known):
        _ask(known[0], "the node is out of service for something else (see `muster node history`), or the part of this "
             "incident was replaced")  # fmt: skip
    return None


def _open(node: Node) -> list[Incident]:
    return [each for each in store.repairs.find(node.name, still_open=True) if each.prove]


def _faults(node: Node) -> Iterator[tuple[Incident | None, Fault, str]]:
    """Yields (open incident or None, fault, why) for what the node is out of service for; nothing while a person is
    asked about it. Changes nothing.
    """
    known = _open(node)
    ours = [each for each in known if store.repairs.out_for(each)]
    if any(each.stopped for each in ours):
        return
    for found in ours:
        yield found, found.fault, found.why
    seen = None if ours else _why_withdrawn(node)
    ladder = policies.repair().ladder_for(seen.check) if seen else None
    if seen and ladder:
        # however old: no sweep reads a node that is out of service
        fault = Fault(ladder.fault, seen.device, seen.part if " " in seen.part else "")
        if not any(each.stopped and each.fault.same(fault) for each in known):
            yield None, fault, seen.sentence


def _wait(found: Incident, step: Wait) -> None:
    with store.engine.transaction():  # as below
        store.repairs.wait(found.id, step.why, asks=step.asks)
        if step.asks and not found.asks:
            _tell(found, f"a person decides: {step.why}")


def _ask(found: Incident, why: str) -> None:
    with store.engine.transaction():  # no person is asked unless the mail is queued
        store.repairs.ask(found.id, why)
        _tell(found, f"a person decides: {why}")


def _why_withdrawn(node: Node) -> Observation | None:
    """The observation that put the node into its current state; None if it is there for another reason."""
    moves = [each for each in store.nodes.events(node.name, EVENTS_MAX) if each.from_state != each.to_state]
    number = observation_of(moves[-1].evidence) if moves else None
    return None if number is None else store.health.of_id(node.name, number)


def _last_boot(found: Incident) -> str:
    """The boot id that the sweep saw last; "" if it may have changed since, by a repair."""
    cursor = store.health.cursors([found.node])[found.node]
    known = cursor.swept_at is not None and all(
        each.ended_at is None or each.ended_at < cursor.swept_at for each in store.repairs.history(found)
    )
    return cursor.boot_id if known else ""


def prove_all() -> list[str]:
    """Close incidents that tests prove to be repaired; returns a sentence for each."""
    closed: list[str] = []
    for name in sorted({each.node for each in store.repairs.find(still_open=True)}):
        with apart(name, []):
            closed += [f"{name}: incident {number} is closed" for number in store.repairs.prove(name)]
    return closed


def _settle(found: Incident, attempt: Attempt, outcome: Outcome, detail: str) -> None:
    _ended(found, lambda: [store.repairs.settle(attempt.id, outcome, detail)])


def _ended(found: Incident, settle: Callable[[], Sequence[Attempt]]) -> None:
    """Settle attempts, and mail how each ended. Raises AirflowFailException unless all succeeded."""
    failed = []
    with store.engine.transaction():  # no attempt ends unless its mail is queued
        for attempt in settle():
            _tell(found, sentence := f"{attempt.rung}: {attempt.outcome}: {attempt.detail}", f"/{attempt.id}")
            if attempt.outcome is not Outcome.SUCCEEDED:
                failed.append(f"{found.node}: {sentence}")
    if failed:
        raise AirflowFailException("; ".join(failed))


def _tell(found: Incident, sentence: str, attempt: str = "") -> None:
    where = f"; evidence: {found.bundle.path}" if found.bundle else ""
    notices.notify(
        f"repair/{found.node}/{found.id}{attempt}",
        f"{found.node}, incident {found.id} ({found.why}): {sentence}{where}. See `muster evidence show "
        f"{found.id}` and docs/failed-node.md",
        of=found.node,
        each=True,
    )
