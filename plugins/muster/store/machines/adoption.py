"""Decisions of a person about a machine: adoption, verification, replacement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.errors import BadInventory, BadNode, IllegalMove, MusterError, NoPerson, Refusal, SameMachine
from muster.model.events import Evidence
from muster.model.names import OWN_KEYS
from muster.model.nodes import NewNode, Node
from muster.model.runs import RunKey
from muster.model.states import State
from muster.rules.identity import CHASSIS
from muster.rules.lifecycle.transitions import Need
from muster.store.database import access
from muster.store.database.engine import writing
from muster.store.database.models import NodeRow, PartRow, PlacementRow, RunRow
from muster.store.decisions import admission
from muster.store.machines.nodes import LEFT_OUT, bearer, check_description, enrol_all
from muster.store.machines.parts import clear_places, current_serials, place, without_chassis
from muster.store.testing.runs import leave_shadow
from muster_criteria.model import Verdict


def adopt(
    names: Iterable[str], actor: str, reason: str, *, enrol: Iterable[tuple[str, NewNode]] = ()
) -> dict[str, str]:
    """Take over machines that serve already: into production, unverified, in shadow mode; all of them or none.

    ``enrol``: nodes to enrol first, as ``nodes.add_all`` does, and adopt with them. Returns {name: "adopted", or
    "unchanged" if it is in production already}. Raises BadInventory with a sentence for each refused node: unknown, not
    registered, leased by a run, or failed in one of Muster's tests.
    """
    outcome: dict[str, str] = {}
    problems: list[str] = []
    with writing() as session:
        access.take_turns(session, "enrol")
        new, known = list(enrol), list(names)
        access.lock_nodes(session, (*known, *(node.name for _, node in new)))
        enrolled = enrol_all(session, new, actor)
        for name in dict.fromkeys([*enrolled, *known]):
            if (left_out := enrolled.get(name, "")).startswith(LEFT_OUT):
                problems.append(left_out)
                continue
            try:
                outcome[name] = _adopt(session, access.node_row(session, name, lock=True), actor, reason)
            except MusterError as error:
                problems.append(str(error))
        if problems:
            raise BadInventory(problems)
    return outcome


def verify(name: str, actor: str, reason: str, run: RunKey | None = None) -> str:
    """End a node's shadow mode by a person's decision: "verified", or "unchanged" if it is in none.

    ``run``: the run that carries out the decision. Raises NoPerson without a named person and a reason, IllegalMove if
    the gate to production refuses the node, NodeLeased if another run holds it, UnknownNode.
    """
    evidence = Evidence(person=actor, reason=reason)
    with writing() as session:
        row = access.node_row(session, name, lock=True)
        if not Need.PERSON.met(evidence):
            raise NoPerson(f"{name} leaves shadow mode on a full-coverage PASS, or {Need.PERSON.value}")
        if not row.shadow:
            return "unchanged"
        access.refuse_leased(session, row, run)
        admission.check(name, admission.decide(session, row), evidence)
        leave_shadow(session, row, actor, reason, evidence)
        return "verified"


def replace(
    name: str,
    actor: str,
    reason: str,
    *,
    host_key: str,
    host: str = "",
    port: int = 0,
    serials: Mapping[str, str] | None = None,
    bmc: Mapping[str, Any] | None = None,
) -> Node:
    """Give the name to another machine, which starts as registered.

    ``bmc``: its BMC, {} for none; by default the old machine's, since the address often belongs to the place.
    Earlier runs, verdicts, waivers and inconclusive runs stay with the serials and no longer count for this node.
    ``serials`` {slot: serial}: those of the new machine, where known. Raises NodeLeased, BadNode (malformed, or nothing
    differs), SameMachine (enrolled under another name), IllegalMove (no person, no reason), UnknownNode.
    """
    with writing() as session:
        access.take_turns(session, "enrol")
        row = access.node_row(session, name, lock=True)
        before, known = _of_machine(session, row), dict(serials or {})
        check_description(NewNode(name, host or row.host, host_key, row.sku, port or row.port))
        _check_other_machine(session, row, host_key, known)
        row.host_key, row.host, row.port = host_key, host or row.host, port or row.port
        row.bmc = row.bmc if bmc is None else dict(bmc)
        _begin_again(session, row, actor, reason)
        clear_places(session, name)
        place(session, name, known)
        changed = {"before": before, "after": _of_machine(session, row)}
        access.remark(session, row, actor, "the machine behind the name is another one", changed)
        return access.to_node(row)


def rekey(name: str, actor: str, reason: str, *, host_key: str) -> Node:
    """Pin the new host key of a reinstalled machine; its history, serials and state stay.

    A result with another chassis serial, or with no known chassis serial and no known GPU, is refused as another
    machine's (``parts.place``). Raises NodeLeased, BadNode (malformed, or the same key), SameMachine (another node has
    the key), IllegalMove (no person, no reason, retired), UnknownNode.
    """
    with writing() as session:
        access.take_turns(session, "enrol")
        row = access.node_row(session, name, lock=True)
        before = _of_machine(session, row)
        check_description(NewNode(name, row.host, host_key, row.sku, row.port))
        _check_other_machine(session, row, host_key, {})
        if State(row.state) is State.RETIRED:
            raise IllegalMove(
                f"{name} is retired, and keeps its host key: if it comes back, first `muster node move {name} "
                "registered --reason …`",
                Refusal.STATE,
            )
        if not Need.REPLACEMENT.met(Evidence(person=actor, reason=reason, replaced=True)):
            raise NoPerson(f"{name} keeps its host key: a new one needs a named person and a reason")
        row.host_key = host_key
        changed = {"person": actor, "reason": reason, "before": before, "after": _of_machine(session, row)}
        access.remark(session, row, actor, f"reinstalled: {reason}", changed)
        return access.to_node(row)


def _adopt(session: Session, row: NodeRow, actor: str, reason: str) -> str:
    state = State(row.state)
    if state is State.PRODUCTION:
        return "unchanged"
    if state is not State.REGISTERED:
        raise IllegalMove(f"{row.name} is in {state}: only a registered node can be adopted", Refusal.STATE)
    access.refuse_leased(session, row)
    failed = select(RunRow.run_id).where(
        RunRow.node == row.name, RunRow.verdict == Verdict.FAIL, RunRow.machine == row.machine
    )
    run_id = session.scalar(failed.order_by(RunRow.id.desc()).limit(1))
    if run_id is not None:
        sentence = (
            f"{row.name} failed run {run_id} and cannot be adopted: test it, `muster qualify {row.name} --reason …`"
        )
        raise IllegalMove(sentence, Refusal.FAILED)
    evidence = Evidence(person=actor, reason=reason, adopted=True)
    access.move(session, row, State.PRODUCTION, actor, f"adopted, in shadow mode: {reason}", evidence)
    return "adopted"


def _of_machine(session: Session, row: NodeRow) -> dict[str, Any]:
    serials = current_serials(session, row.name)
    known = {"host_key": row.host_key, "address": f"{row.host}:{row.port}", "serials": serials}
    return {**known, "bmc": row.bmc["url"]} if row.bmc else known


def _check_other_machine(session: Session, row: NodeRow, host_key: str, serials: Mapping[str, str]) -> None:
    access.refuse_leased(session, row)
    known = current_serials(session, row.name)
    if host_key == row.host_key and all(known.get(slot) == serial for slot, serial in serials.items()):
        raise BadNode(
            f"{row.name} has this host key{' and these serials' if serials else ''} already: nothing differs; if "
            f"the same machine came back repaired, `muster node move {row.name} registered --reason …`; if another "
            "machine has its disks, give the serial that differs: "
            f"`muster node replace {row.name} --serial SLOT=SERIAL --reason …`"
        )
    if other := bearer(session, host_key, row.name):
        raise SameMachine(
            f"the machine at {row.name} has the host key of {other}: retire or replace {other} first; {OWN_KEYS}"
        )
    chassis = [serial for slot, serial in without_chassis(session, row.name, serials).items() if slot in CHASSIS]
    sits = session.execute(
        select(PlacementRow.node, PartRow.serial)
        .join(PartRow)
        .join(NodeRow, NodeRow.name == PlacementRow.node)
        .where(
            NodeRow.state != State.RETIRED,
            PartRow.serial.in_(chassis),
            PartRow.kind.in_(CHASSIS),
            PlacementRow.until.is_(None),
            PlacementRow.node != row.name,
        )
    ).first()
    if sits is not None:
        raise SameMachine(f"the machine with serial {sits.serial} is {sits.node}: retire or replace {sits.node} first")


def _begin_again(session: Session, row: NodeRow, actor: str, reason: str) -> None:
    evidence = Evidence(person=actor, reason=reason, replaced=True)
    if State(row.state) is State.REGISTERED:
        if not Need.REPLACEMENT.met(evidence):
            raise NoPerson(f"{row.name} is not replaced: that needs {Need.REPLACEMENT.value}")
        access.remark(session, row, actor, f"replaced: {reason}", access.evidence_json(evidence))
    else:
        access.move(session, row, State.REGISTERED, actor, f"replaced: {reason}", evidence)
    row.repaired = access.last_stage(session, row)
    row.machine, row.machine_since, row.environment = row.machine + 1, access.now(), {}
    row.inconclusive, row.contact_at, row.held_run = 0, None, ""
    row.lemon_since = None
    row.placed, row.remarked, row.machine_event = 0, 0, access.last_event(session, row)
