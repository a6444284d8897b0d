"""Enrolment, look-up, moves and history of nodes."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import json
import shlex
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from muster import redaction
from muster.errors import (
    BadInventory,
    BadNode,
    DifferentMachine,
    IllegalMove,
    MusterError,
    NodeLeased,
    Refusal,
    SameMachine,
    at,
)  # fmt: skip
from muster.model.dags import POOL_CHARACTERS
from muster.model.events import Event, Evidence
from muster.model.names import ADDRESS_LABEL, HOST_KEY, NODE_NAME, OWN_KEYS, is_host
from muster.model.nodes import NewNode, Node
from muster.model.states import State
from muster.rules.identity import as_known, replacement
from muster.rules.lifecycle.transitions import steps
from muster.store.database import access
from muster.store.database.batches import batches
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, NodeRow
from muster.store.decisions import admission, certificates
from muster.store.machines.parts import current_serials, place
from muster.store.testing.runs import attested

_DESCRIPTION = ("host", "port", "user", "sku", "launch", "work_dir", "rack", "pool", "labels", "bmc")
_MAPPINGS = ("launch", "labels", "bmc")
_OF_RUN = frozenset({"host", "port", "user", "launch", "work_dir", "sku"})
"""The fields by which a run's job is reached, stopped and read, and its node judged."""
LEFT_OUT = "left out"


def add(node: NewNode) -> str:
    """Enrol a machine, or update a known one's description: "added", "unchanged" or "updated: host a → b".

    Changes nothing if it raises: DifferentMachine if the name is known with another host key or other serials, or one
    of the two machines is simulated and the other real; SameMachine if the host key is known under another name;
    BadNode if the description is malformed; NodeLeased if a run holds the node and its job could no longer be found, or
    its SKU would change; IllegalMove if the node is retired, or the SKU of a tested node or a rack that is held would
    change.
    """
    with writing() as session:
        access.take_turns(session, "enrol")
        return enrol(session, node, "muster")


def add_all(nodes: Iterable[tuple[str, NewNode]], actor: str = "muster", *, change: bool = True) -> dict[str, str]:
    """Enrol many at once, or none: {name: "added", "unchanged" or "updated: host a → b"}.

    Each comes with its place ("fleet.yaml:12"). One that would raise NodeLeased stays as it is ("left out: why"), as a
    fleet in operation always has nodes under test. Without ``change``, a new description of a known node is refused.
    Raises BadInventory with one sentence for each refused node.
    """
    with writing() as session:
        access.take_turns(session, "enrol")
        return enrol_all(session, nodes, actor, change=change)


def get(name: str) -> Node:
    """The node of that name. Raises UnknownNode."""
    with reading() as session:
        return access.to_node(access.node_row(session, name))


def find(*, states: Collection[State] = (), sku: str = "", rack: str = "") -> list[Node]:
    """All nodes by name, or those in one of ``states``, of ``sku``, in ``rack``."""
    query = select(NodeRow).order_by(NodeRow.name)
    if states:
        query = query.where(NodeRow.state.in_(states))
    if sku:
        query = query.where(NodeRow.sku == sku)
    if rack:
        query = query.where(NodeRow.rack == rack)
    with reading() as session:
        return [access.to_node(row) for row in session.scalars(query)]


def enrolled_since() -> datetime.datetime | None:
    """When the first node was enrolled, None without any."""
    with reading() as session:
        return session.scalar(select(func.min(NodeRow.added_at)))


def named(names: Collection[str]) -> dict[str, Node]:
    """{name: node}, for those of these names that are enrolled."""
    with reading() as session:
        found = (session.scalars(select(NodeRow).where(NodeRow.name.in_(some))) for some in batches(names))
        return {row.name: access.to_node(row) for rows in found for row in rows}


def lacking(labels: Mapping[str, str]) -> set[str]:
    """The names of the nodes that lack any of these labels, and in lower case what else a text may call them.

    Those are their name, host and address for other nodes, and the part of each before the first dot, except what also
    names a node that has the labels.
    """
    names, theirs, ours = set[str](), set[str](), set[str]()
    with reading() as session:
        for name, host, has in session.execute(select(NodeRow.name, NodeRow.host, NodeRow.labels)) if labels else ():
            called = {each.lower().removesuffix(".") for each in (name, host, str(has.get(ADDRESS_LABEL, "")))}
            called |= {part for each in called if is_host(part := each.partition(".")[0])}  # not of an address
            if labels.items() <= has.items():
                ours |= called
            else:
                names.add(name)
                theirs |= called
    return names | (theirs - ours - {""})


def meant(names: Collection[str]) -> dict[str, str]:
    """{name: the node that another program means by it}.

    That is the node with this name, else the one with this host, else the one whose name or host is the part before the
    first dot. A name that fits several nodes, or none, stays as it is.
    """
    hosts = set(filter(is_host, names))
    first = {name: part for name in hosts if is_host(part := name.partition(".")[0])}  # not of an address
    known: set[str] = set()
    having: dict[str, set[str]] = collections.defaultdict(set)
    query = select(NodeRow.name, NodeRow.host, NodeRow.state)
    with reading() as session:
        for some in batches(hosts | set(first.values())):
            for node, host, state in session.execute(query.where(or_(NodeRow.name.in_(some), NodeRow.host.in_(some)))):
                known.add(node)
                if state != State.RETIRED:  # another machine may answer there now
                    having[node].add(node)
                    having[host].add(node)
    found = {name: {name} if name in known else having[name] or having[first.get(name, "")] for name in names}
    return {name: next(iter(nodes)) if len(nodes) == 1 else name for name, nodes in found.items()}


def move(name: str, to: State, actor: str, reason: str, evidence: Evidence | None = None) -> Node:
    """Move a node in one transaction with its event; returns the moved node.

    Without ``evidence`` it is ``actor``'s own decision, for ``reason``, and each of ``transitions.steps`` is an event.
    What the evidence claims about a run (that it holds the node, its verdict, its coverage) is replaced by what is
    recorded. A move into production needs the gate: a node that it refuses does not enter, and one that it does not
    admit enters only by a person's decision. While a run other than the evidence's holds the node, no person moves it
    into production or registered: it would serve under the test's load, or pass by measurements from before its repair.
    Raises IllegalMove, NodeLeased, SameMachine (a retired node's machine has another name now), UnknownNode.
    """
    with writing() as session:
        row = access.node_row(session, name, lock=True)
        if State(row.state) is State.RETIRED and (other := bearer(session, row.host_key, name)):
            raise SameMachine(f"{name} stays retired: its machine is {other} now, which has its host key")
        resting = evidence or Evidence(person=actor, reason=reason)
        decision = admission.decide(session, row) if to is State.PRODUCTION else None
        if to in (State.PRODUCTION, State.REGISTERED) and resting.person:
            access.refuse_leased(session, row, resting.run)
        proven = attested(session, row, resting)
        for state in (State(to),) if evidence else steps(State(row.state), State(to)):
            access.move(session, row, state, actor, reason, proven)
        if decision is not None:
            admission.check(name, decision, resting)
            certificates.issue(session, row, actor, proven)
        if resting.person:
            row.inconclusive = 0
        return access.to_node(row)


def touch_contact(name: str, at: datetime.datetime | None = None) -> None:
    """Note that the node has answered."""
    with writing() as session:
        row = access.node_row(session, name)
        moment = at or access.now()
        row.contact_at = max(moment, row.contact_at) if row.contact_at else moment


def events(name: str, limit: int | None = None) -> list[Event]:
    """The node's history, oldest first (the last ``limit`` of it). Raises UnknownNode."""
    with reading() as session:
        access.node_row(session, name)
        query = select(EventRow).where(EventRow.node == name).order_by(EventRow.id.desc()).limit(limit)
        rows = list(session.scalars(query))
    return [access.to_event(row) for row in reversed(rows)]


def enrol_all(
    session: Session, nodes: Iterable[tuple[str, NewNode]], actor: str, *, change: bool = True
) -> dict[str, str]:
    """``add_all`` within the caller's transaction, which holds the enrolment lock."""
    listed = list(nodes)
    access.lock_nodes(session, (node.name for _, node in listed))
    outcome: dict[str, str] = {}
    problems: list[str] = []
    for where, node in listed:
        try:
            outcome[node.name] = enrol(session, node, actor, change=change)
        except NodeLeased as error:
            outcome[node.name] = f"{LEFT_OUT}: {error}"
        except MusterError as error:
            problems.append(at(where, error))
    if problems:
        raise BadInventory(problems)
    return outcome


def enrol(session: Session, new: NewNode, actor: str, *, change: bool = True) -> str:
    """``add`` within the caller's transaction, which holds the enrolment lock."""
    row = session.get(NodeRow, new.name, with_for_update=access.NODE_LOCK)
    if new.adds_labels:
        labels = {**(row.labels if row is not None else {}), **new.labels}
        new = dataclasses.replace(new, labels={name: text for name, text in labels.items() if text})
    check_description(new)
    other = bearer(session, new.host_key, new.name)
    if row is not None and State(row.state) is State.RETIRED:
        raise IllegalMove(_retired(row, new), Refusal.STATE)
    if row is not None and row.host_key != new.host_key:
        moved = (new.host, new.port) != (row.host, row.port)
        to, key = (f" --host {new.host} --port {new.port}", f" --host-key '{new.host_key}'") if moved else ("", "")
        raise DifferentMachine(
            f"{new.name} is enrolled with another host key than the one at {new.host}:{new.port}: give a different "
            f"machine a name of its own, or record what changed: another machine has taken the place, `muster node "
            f"replace {new.name}{to} --reason …`, or it has a new system, `muster node reinstalled {new.name}{key} "
            "--reason …`"
        )
    if other is not None:
        raise SameMachine(
            f"{new.name} has the host key of {other}: it is the same machine, and keeps the name {other}; {OWN_KEYS}"
        )
    if row is None:
        fields = {field.name: getattr(new, field.name) for field in dataclasses.fields(new)}
        del fields["serials"], fields["named"], fields["adds_labels"]
        fields |= {name: dict(getattr(new, name)) for name in _MAPPINGS}
        moment = access.now()
        row = NodeRow(
            **fields, state=State.REGISTERED, added_at=moment, machine_since=moment, fence=0, inconclusive=0,
            shadow=False,
        )  # fmt: skip
        session.add(row)
        session.flush()
        access.remark(session, row, actor, "enrolled", {"sku": new.sku})
        place(session, new.name, new.serials)
        return "added"
    return _describe(session, row, new, actor, change=change)


def bearer(session: Session, host_key: str, but: str) -> str | None:
    """The node other than ``but`` with this host key, unless it is retired: its machine may now have another name."""
    query = select(NodeRow.name).where(NodeRow.host_key == host_key, NodeRow.name != but)
    return session.scalar(query.where(NodeRow.state != State.RETIRED))


def _retired(row: NodeRow, new: NewNode) -> str:
    """Why a retired node is not enrolled again, and which decision brings this machine back."""
    if row.host_key == new.host_key:
        return (
            f"{new.name} is retired: if it comes back, `muster node move {new.name} registered --reason …`; if not, "
            "leave it out"
        )
    moved = (new.host, new.port) != (row.host, row.port)
    to = f" --host {new.host} --port {new.port}" if moved else ""
    return (
        f"{new.name} is retired, and had another host key than the one at {new.host}:{new.port}: if this machine takes "
        f"the name, `muster node replace {new.name}{to} --reason …`; if not, give it a name of its own"
    )


def _describe(session: Session, row: NodeRow, new: NewNode, actor: str, *, change: bool) -> str:
    if new.simulated is not row.simulated and (new.named is None or "simulated" in new.named):
        kind, other = ("simulated", "real") if row.simulated else ("real", "simulated")
        raise DifferentMachine(
            f"{new.name} is enrolled as {kind} hardware, and so are its results: {other} hardware needs a name of its "
            f"own; retire {new.name} first, `muster node remove {new.name} --reason …`"
        )
    known = current_serials(session, new.name)
    for slot, serial in as_known(new.serials, known).items():
        if known.get(slot, serial) != serial:
            raise DifferentMachine(
                f"{new.name} has serial {known[slot]} for {slot}, and this machine has {serial}; "
                f"give it a name of its own, or record the replacement: `{replacement(new.name, {slot: serial})}`"
            )
    named = _DESCRIPTION if new.named is None else [name for name in _DESCRIPTION if name in new.named]
    changed = [name for name in named if getattr(row, name) != getattr(new, name)]
    if changed and not change:
        raise IllegalMove(
            f"{new.name} is enrolled with another {', '.join(changed)}, and an event changes no node: send the event "
            "without it, or change it first by `muster node add` or `muster node import`",
            Refusal.BY_EVENT,
        )
    if _OF_RUN & {*changed}:
        access.refuse_leased(session, row)
    if "sku" in changed and State(row.state) is not State.REGISTERED:
        raise IllegalMove(
            f"{new.name} is {row.state} as {row.sku} and cannot become {new.sku}; "
            f"move it back first: `muster node move {new.name} registered --reason …`",
            Refusal.STATE,
        )
    if "rack" in changed and admission.rack_held(session, row):
        raise IllegalMove(
            f"{new.name} stays in rack {row.rack} while that is held: when it is repaired, release it first, "
            f"`muster racks release {shlex.quote(row.rack)} --reason …`",
            Refusal.RACK_HELD,
        )
    if "sku" in changed:
        row.sku_after = access.last_stage(session, row)
    before = {name: getattr(row, name) for name in changed}
    for name in changed:
        value = getattr(new, name)
        setattr(row, name, dict(value) if name in _MAPPINGS else value)
    place(session, new.name, new.serials)
    if not changed:
        return "unchanged"
    # The history and the audit stream's receivers keep it for good: redact what launch settings hand to a job.
    before = {name: redaction.of_value(value) for name, value in before.items()}
    after = {name: redaction.of_value(getattr(row, name)) for name in changed}
    what = "; ".join(f"{name} {_shown(before[name])} → {_shown(after[name])}" for name in changed)
    access.remark(session, row, actor, f"description changed: {what}", {"before": before, "after": after})
    return f"updated: {what}"


def _shown(value: object) -> str:
    """A field of a description in a sentence."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if text.strip("{}") else "none"


def check_description(new: NewNode) -> None:
    """Raise BadNode if the description is malformed."""
    if not NODE_NAME.fullmatch(new.name):
        raise BadNode(
            f"{new.name!r} cannot be a node's name: use up to 63 letters, digits, '.', '-' and single '_', "
            "beginning with a letter or digit"
        )
    if not is_host(new.host):
        raise BadNode(f"{new.name}: {new.host!r} is no host; give a name, or an address in full")
    address = str(new.labels.get(ADDRESS_LABEL, new.host))
    if not is_host(address):
        raise BadNode(
            f"{new.name}: its label {ADDRESS_LABEL} {address!r} is no host; give a name, or an address in full"
        )
    if not 0 < new.port < 65536:
        raise BadNode(f"{new.name}: {new.port} is no port; give 1 to 65535")
    if not HOST_KEY.fullmatch(new.host_key):
        raise BadNode(
            f"{new.name}: its host key is not 'TYPE BASE64' as in known_hosts; copy it from `ssh-keyscan {new.host}`"
        )
    if len(new.pool) > POOL_CHARACTERS:
        raise BadNode(f"{new.name}: its pool has {len(new.pool)} characters; Airflow takes {POOL_CHARACTERS} at most")
    if not new.sku.strip():
        raise BadNode(f"{new.name}: no SKU given; see `muster sku list`")
