"""Admission to production: the records ask the gate and move the node, and its scheduler then opens it."""

from __future__ import annotations

from muster import store
from muster.admission.clusters import backend_of
from muster.admission.service import carry_out
from muster.errors import IllegalMove, MusterError, Refusal
from muster.model.events import Evidence
from muster.model.nodes import Node
from muster.model.runs import RunKey
from muster.model.schedulers import ADMITTED, WITHDRAWN, Place
from muster.model.states import SERVING, State
from muster.rules.lifecycle.gate import Admit, Decision, Refuse
from muster.settings import settings


def admit(node: str, key: RunKey) -> Decision:
    """Admit the node to production if the gate admits it, for the run that holds it. Returns the gate's decision.

    If it is there already, only the scheduler's change is repeated. Raises IllegalMove if the run does not hold it.
    """
    decision = store.admission.decision(node)
    if isinstance(decision, Admit):
        if store.nodes.get(node).state is not State.PRODUCTION:
            evidence = Evidence(run=key)
            store.nodes.move(node, State.PRODUCTION, "muster", "full-coverage PASS at node and cluster level", evidence)
        carry_out(node)
    return decision


def move(node: str, to: State, person: str, reason: str, *, dry_run: bool = False) -> Node:
    """Move the node on a person's decision; into production only as ``admit_by`` does.

    ``dry_run``: the scheduler is not called (for ``store.engine.rehearsal``). Raises as ``store.nodes.move``.
    """
    record = store.nodes.get(node)
    if to is State.PRODUCTION:
        return admit_by(node, person, reason, dry_run=dry_run)
    record = store.nodes.move(node, to, person, reason)
    if not dry_run:
        carry_out(node)
    return record


def admit_by(
    node: str,
    person: str,
    reason: str,
    *,
    option: str = "admit",
    link: str = "",
    run: RunKey | None = None,
    dry_run: bool = False,
) -> Node:
    """Let the node into production on a person's decision, and record it. For a node that serves already, accept what
    is known of it, with a new certificate. ``run``: the run that asked for the decision, if any.

    Raises IllegalMove if the gate refuses the node, or without a named person and a reason; NodeLeased while a run
    other than the decision's holds it.
    """
    with store.engine.transaction():  # an approval recorded without its move would be shown as carried out
        decision = store.admission.decision(node)
        if isinstance(decision, Refuse):
            raise IllegalMove(f"{node} does not enter production: {'; '.join(decision.reasons)}", Refusal.GATE)
        store.verdicts.record_approval(node, person, option, reason, link=link, run=run)
        record = store.nodes.get(node)
        if record.shadow and record.state is State.PRODUCTION:
            store.adoption.verify(node, person, reason, run)
            record = store.nodes.get(node)
        else:
            evidence = Evidence(person=person, reason=reason, run=run)
            record = store.nodes.move(node, State.PRODUCTION, person, reason, evidence)
    if not dry_run:
        carry_out(node)
    return record


def assign(
    node: str, cluster: str, name: str, person: str, reason: str, *, abandon: bool = False, dry_run: bool = False
) -> Place | None:
    """As ``store.schedulers.assign``. A place that ends is closed for good, even if others keep it closed, since the
    node would be open there once they reopen it. Raises IllegalMove also if that fails, unless ``abandon``.
    """
    before = store.schedulers.place(node)
    same = before is not None and (before.cluster, before.name) == (cluster, name)
    if before is not None and before.done == WITHDRAWN and not (same or abandon or dry_run):
        with store.engine.rehearsal():  # raises, before anything is closed, if the change is refused
            store.schedulers.assign(node, cluster, name, person, reason)
        try:
            backend_of(before.cluster).withdraw(before.name, before.why, before.wanted_at, for_good=True)
        except MusterError as error:
            raise IllegalMove(
                f"whether {before.cluster} keeps {node} closed is not known: {error}; repeat this later, or give that "
                f"place up: `muster node scheduler {node} --none --abandon --reason …`",
                Refusal.STATE,
            ) from None
    return store.schedulers.assign(node, cluster, name, person, reason, abandon=abandon)


def effects(node: Node, after: State, *, kept: bool = False) -> tuple[str, ...]:
    """Returns the side effects of a person's move of the node into ``after``: on scheduler, certificate and mail.

    ``kept``: the node stays where it is, and only the held verdict is accepted.
    """
    certificate = "no change" if kept else _certificate(node, after)
    return f"scheduler: {at_scheduler(node, after)}", f"certificate: {certificate}", "mail: none"


def at_scheduler(node: Node, after: State) -> str:
    """Returns what the node's scheduler will do once the node is in ``after``."""
    place = store.schedulers.place(node.name)
    if place is None:
        return "it has none"
    opens = after is State.PRODUCTION
    if opens == (place.wanted == ADMITTED):
        return f"no change in {place.cluster}"
    return f"{place.cluster} {'allocates' if opens else 'drains'} {place.name}"


def _certificate(node: Node, after: State) -> str:
    if after is State.PRODUCTION:
        return f"a new one in your name, valid for {settings().certificate_days:g} days"
    held = store.certificates.newest(node.name)
    revoked = held and not held.revoked and after not in SERVING
    return f"{held.id} is revoked" if held and revoked else "no change"
