"""One list of what does not serve: each node, why, since when, who acts next, until when, and the command. Pure."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from muster.model import dags
from muster.model.attention import Attention, Cause, Turn
from muster.model.figures import FleetRow
from muster.model.health import Observation
from muster.model.names import SPARE_LABEL
from muster.model.nodes import Lease
from muster.model.questions import Question
from muster.model.racks import HeldRack
from muster.model.repairs import Incident
from muster.model.replacing import Replacement
from muster.model.schedulers import ABSENT, ADMITTED, CLOSED, WITHDRAWN, Place
from muster.model.schedulers import OPEN as OPENED
from muster.model.states import IN_FLIGHT, SERVING, State
from muster.rules.lifecycle.transitions import INCONCLUSIVE_BUDGET
from muster.rules.service.repair import REPAIRABLE
from muster_criteria.model import Verdict

BLOCK_MAX = 16
"""The most nodes that a command for a block names."""
OPEN = {"slurm": "scontrol update nodename={} state=resume", "kubernetes": "kubectl uncordon {}"}
UNDO = {**OPEN, "kubernetes": "kubectl taint node {} muster.dev/withdrawn-"}
LOOK = {"slurm": "scontrol show node {}", "kubernetes": "kubectl describe node {}"}
"""By kind of cluster, the command that opens a node there, the one for a node that Muster closed, and the one that
shows it.
"""
OTHERS_MIN = 2
"""With fewer other nodes of its SKU, a node has no peers: no node gives half of what it is compared with."""
WAITING_FOR = datetime.timedelta(hours=1)
"""How long a repair counts as one that begins by itself, after the sweep last saw that it waits."""
LATE_AFTER = datetime.timedelta(days=5)
"""What waits for Muster for longer is shown to people, as by the alert MusterNodesWait."""
_TESTED_FROM = (State.REGISTERED, State.QUALIFIED, State.REVALIDATION)


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known of nodes apart from their rows, by node.

    ``questions``: the open ones, with their ends. ``refusals``: when and why the last test was refused. ``kinds``: by
    cluster. ``replacements``: those that are proposed, by spare. ``racks``: those that are held, by name and by whether
    they are simulated. ``incidents``: all open ones; of a node in ``REPAIRABLE``, those that put it there.
    ``obstacles``: why the node's run, which tries again, could not reach it. ``untestable``: when its tests were
    refused although nothing else used it, in order. ``leaving``: of a node in service, the observation for which it is
    to leave. ``members``: how many nodes may be peers, by SKU and by whether they are simulated. ``uncompared``: SKUs
    that compare nothing with other nodes. ``failing``: of a node in shadow mode, the FAIL that stands on it, and why.
    """

    places: Mapping[str, Place] = dataclasses.field(default_factory=dict)
    questions: Mapping[str, tuple[Question, datetime.datetime]] = dataclasses.field(default_factory=dict)
    leases: Mapping[str, Lease] = dataclasses.field(default_factory=dict)
    refusals: Mapping[str, tuple[datetime.datetime, str]] = dataclasses.field(default_factory=dict)
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    replacements: Mapping[str, Replacement] = dataclasses.field(default_factory=dict)
    racks: Mapping[tuple[str, bool], HeldRack] = dataclasses.field(default_factory=dict)
    incidents: Iterable[Incident] = ()
    obstacles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    untestable: Mapping[str, Sequence[datetime.datetime]] = dataclasses.field(default_factory=dict)
    leaving: Mapping[str, Observation] = dataclasses.field(default_factory=dict)
    members: Mapping[tuple[str, bool], int] = dataclasses.field(default_factory=dict)
    uncompared: Collection[str] = ()
    failing: Mapping[str, str] = dataclasses.field(default_factory=dict)


def attention(rows: Sequence[FleetRow], known: Known, now: datetime.datetime) -> list[Attention]:
    """Returns every node that does not serve, and those that serve while somebody has to decide about them.

    Those that wait for a person come first; then the most urgent cause, then the longest wait.
    """
    in_order = sorted(known.incidents, key=lambda one: (bool(one.asks), one.id))
    repairs = {each.node: each for each in in_order if each.prove}
    nodes = [_Seen(row, known, repairs.get(row.node), now) for row in rows]
    ready = collections.defaultdict[tuple[str, bool], list[str]](list)
    for seen in nodes:
        if seen.row.state is State.QUALIFIED and not (seen.asked or seen.lease or seen.paused or seen.rack):
            ready[seen.row.sku, seen.row.simulated].append(seen.row.node)
    found: list[Attention] = []
    for seen in nodes:
        row = seen.row
        own = _own(seen, ready[row.sku, row.simulated])
        place = known.places.get(row.node)
        bad = bool(row.held_run) or row.node in known.leaving
        at = _at_scheduler(row, place, known.kinds.get(place.cluster, ""), bad) if place else None
        found += [each for each in (own, at) if each is not None]
    for place_, each in enumerate(found):
        if each.waits_for_muster and each.since and now - each.since > LATE_AFTER:
            found[place_] = dataclasses.replace(each, late=True)
    order = list(Cause)
    # Persons first: an unreachable scheduler adds an item for each of its nodes, and lists are cut.
    found.sort(key=lambda each: (
        each.turn is not Turn.PERSON, order.index(each.cause), each.since is None, each.since, each.node,
    ))  # fmt: skip
    return found


class _Seen:
    """A node with what is known about it apart from its row. A refusal counts until a test ends."""

    def __init__(self, row: FleetRow, known: Known, incident: Incident | None, now: datetime.datetime) -> None:
        def counts(at: datetime.datetime) -> bool:
            return row.ended_at is None or at > row.ended_at

        node, (at, why) = row.node, known.refusals.get(row.node, (now, ""))
        self.row, self.incident, self.now, self.name = row, incident, now, shlex.quote(node)
        self.asked, self.lease = known.questions.get(node), known.leases.get(node)
        self.replaces, self.rack = known.replacements.get(node), known.racks.get((row.rack, row.simulated))
        self.obstacle, self.leaves = known.obstacles.get(node, ""), known.leaving.get(node)
        self.others = max(0, known.members.get((row.sku, row.simulated), 0) - 1)
        self.compared, self.failing = row.sku not in known.uncompared, known.failing.get(node, "")
        self.refused = why if counts(at) else ""
        self.refusals = [each for each in known.untestable.get(node, ()) if counts(each)]
        self.why = row.held_for or row.moved_for or self.refused or row.headline or "it was not tested yet"
        self.paused = row.paused_until if row.paused_until and row.paused_until > now else None

    def item(
        self, cause: Cause, turn: Turn, command: str, why: str = "", until: datetime.datetime | None = None
    ) -> Attention:
        row = self.row
        decided = cause in (Cause.HELD, Cause.QUESTION)  # by their own command, in their own time
        if self.paused and not decided and turn is not Turn.VENDOR and row.state in _TESTED_FROM:
            turn, until, command = Turn.PERSON, self.paused, f"muster node resume {self.name} --reason …"
            why = f"its tests are paused; {why or self.why}"
        since = row.ended_at if cause in (Cause.HELD, Cause.NO_VERDICT) else row.state_since
        serving = row.state is State.PRODUCTION
        return Attention(
            row.node, row.state, cause, since, why or self.why, turn, command, until, serving, row.simulated
        )


def _own(seen: _Seen, alike: Sequence[str]) -> Attention | None:
    """What the records alone say of the node; None if it serves and no decision is open, or it is retired.

    ``alike``: nodes of its SKU that could join a block now.
    """
    row, name = seen.row, seen.name
    if seen.asked is not None:
        question, until = seen.asked
        cause = Cause.HELD if row.held_run else Cause.QUESTION
        answer = f"muster approve {shlex.quote(question.run_id)} --option … --reason …"
        why = f"{question.subject} {seen.why}".strip()
        return dataclasses.replace(seen.item(cause, Turn.PERSON, answer, why, until), since=question.asked_at)
    if row.held_run:
        ways = f"muster node move {name} quarantine --reason …, or muster node keep {name} --reason …"
        return seen.item(Cause.HELD, Turn.PERSON, ways)
    if row.state in IN_FLIGHT or (seen.lease is not None and row.state in _TESTED_FROM):
        run = f"muster runs show {shlex.quote(str(seen.lease.key))}" if seen.lease else f"muster node show {name}"
        if seen.lease and seen.obstacle:
            return seen.item(Cause.RETRIED, Turn.MUSTER, f"muster node check {name}", seen.obstacle)
        why = f"run {seen.lease.run_id} tests it" if seen.lease else "its run has ended: housekeeping returns it"
        return seen.item(Cause.IN_TEST, Turn.MUSTER, run, why)
    if seen.incident is not None and (repaired := _repaired(seen, seen.incident)) is not None:
        return repaired
    match row.state:
        case State.PRODUCTION if row.inconclusive >= INCONCLUSIVE_BUDGET:
            return seen.item(Cause.NO_VERDICT, Turn.PERSON, f"muster node show {name}")
        case State.PRODUCTION | State.REVALIDATION if len(seen.refusals) >= INCONCLUSIVE_BUDGET:
            why = f"it cannot be tested: {seen.refused or seen.why}"
            item = seen.item(Cause.NO_VERDICT, Turn.PERSON, f"muster node check {name}", why)
            return dataclasses.replace(item, since=seen.refusals[0])
        case State.PRODUCTION if seen.leaves is not None:
            why = f"it is to leave service ({seen.leaves.action}): {seen.leaves.sentence}"
            item = seen.item(Cause.LEAVES, Turn.MUSTER, f"muster node move {name} quarantine --reason …", why)
            return dataclasses.replace(item, since=seen.leaves.first_seen)
        case State.PRODUCTION if row.shadow and seen.failing:
            why = f"it serves in shadow mode, and {seen.failing}"
            ways = f"muster node move {name} quarantine --reason …, or muster waive FINDING --until … --reason …"
            return seen.item(Cause.UNVERIFIED, Turn.PERSON, ways, why)
        case State.PRODUCTION if row.shadow:
            why = "it serves in shadow mode, and no whole test of it has passed"
            return seen.item(Cause.UNVERIFIED, Turn.MUSTER, f"muster revalidate {name} --reason …", why)
        case State.REVALIDATION:
            return seen.item(Cause.TEST_DUE, Turn.MUSTER, f"muster revalidate {name} --reason …")
        case State.QUARANTINE | State.TRIAGE | State.REPAIR:
            return seen.item(Cause(str(row.state)), Turn.PERSON, f"muster node move {name} registered --reason …")
        case State.RMA:
            ways = f"muster node move {name} registered --reason …"  # usually only a part is exchanged
            ways += f", or, if the vendor sent another machine, muster node replace {name} --reason …"
            return seen.item(Cause.RMA, Turn.VENDOR, ways)
        case State.REGISTERED:
            inconclusive = row.verdict is Verdict.INCONCLUSIVE and not row.moved_for
            cause = Cause.INCONCLUSIVE if inconclusive else Cause.NOT_TESTED
            return seen.item(cause, Turn.PERSON, f"muster qualify {name} --reason …")
        case State.QUALIFIED:
            return _qualified(seen, alike)
    return None


def _repaired(seen: _Seen, incident: Incident) -> Attention | None:
    """What an open incident says of the node; None if its state says it all."""
    row, name = seen.row, seen.name
    about = f"incident {incident.id}, {incident.fault.fault_class} {incident.fault.device}".rstrip()
    if seen.lease is not None and seen.lease.dag_id == dags.REPAIR:
        why = f"run {seen.lease.run_id} repairs it ({about})"
        return seen.item(Cause.IN_REPAIR, Turn.MUSTER, f"muster evidence show {incident.id}", why)
    if row.state in REPAIRABLE and incident.asks:
        why = f"{incident.asks} ({about}: {incident.why})"
        return seen.item(Cause(str(row.state)), Turn.PERSON, f"muster evidence show {incident.id}", why)
    waiting = incident.waits_at is not None and seen.now - incident.waits_at <= WAITING_FOR
    if row.state in REPAIRABLE and incident.waits and waiting:
        why = f"{incident.waits} ({about}: {incident.why})"
        return seen.item(Cause.WAITS_FOR_REPAIR, Turn.MUSTER, f"muster evidence show {incident.id}", why)
    why = f"no test has proved its repair ({about}); {seen.why}"
    if row.state is State.REGISTERED:
        command = f"muster qualify {name} --level {incident.level} --reason …"
        return seen.item(Cause.NOT_TESTED, Turn.PERSON, command, why)
    if row.state is State.PRODUCTION and seen.leaves is None:  # its part came there, or a person admitted it
        ways = f"muster revalidate {name} --level {incident.level} --reason …"
        ways += f", or muster evidence close {incident.id} --reason …"
        return seen.item(Cause.NOT_TESTED, Turn.PERSON, ways, why)
    return None


def _qualified(seen: _Seen, alike: Sequence[str]) -> Attention:
    """A qualified node waits for a block, or for a person where a block does not help."""
    row, name = seen.row, seen.name
    if seen.rack is not None:
        command = f"muster racks release {shlex.quote(seen.rack.rack)} --reason …"
        return seen.item(Cause.RACK, Turn.PERSON, command, f"rack {seen.rack.rack} is held: {seen.rack.why}")
    if row.came_from in SERVING:
        return seen.item(Cause.FALLEN, Turn.PERSON, f"muster admit {name} --reason …")
    if seen.replaces is not None:
        return seen.item(Cause.REPLACES, Turn.PERSON, seen.replaces.command, f"it {seen.replaces.sentence}")
    in_block = row.dag_id == dags.CLUSTER_QUALIFICATION
    if row.verdict is Verdict.PROVISIONAL and not in_block:
        why, turn = f"{seen.why} It is re-evaluated once enough similar nodes were tested.", Turn.MUSTER
        if not seen.compared:
            why, turn = f"{seen.why} Its SKU compares nothing with other nodes.", Turn.PERSON
        elif seen.others < OTHERS_MIN:
            why, turn = f"{seen.why} Too few nodes have its SKU to compare it with.", Turn.PERSON
        return seen.item(Cause.PROVISIONAL, turn, f"muster admit {name} --reason …", why)
    if row.spare and in_block and row.verdict is Verdict.PASS:
        why = f"it passed, and is kept as a spare (label {SPARE_LABEL})"
        return seen.item(Cause.SPARE, Turn.MUSTER, f"muster admit {name} --reason …", why)
    if row.verdict is Verdict.WARN or (in_block and row.verdict is not Verdict.INCONCLUSIVE):
        return seen.item(Cause.BLOCK_DECIDED, Turn.PERSON, f"muster admit {name} --reason …")
    others = [each for each in alike[:BLOCK_MAX] if each != row.node]
    passed = f"its last block was {row.verdict}: {seen.why}" if in_block else "it passed, and waits for a block"
    if not others:
        why = f"{passed}: no other node of its SKU is qualified"
        return seen.item(Cause.WAITS_FOR_BLOCK, Turn.PERSON, f"muster admit {name} --reason …", why)
    block = sorted([row.node, *others[: BLOCK_MAX - 1]])
    command = f"muster block {' '.join(map(shlex.quote, block))} --reason …"
    return seen.item(Cause.WAITS_FOR_BLOCK, Turn.PERSON, command, passed)


def _at_scheduler(row: FleetRow, place: Place, kind: str, bad: bool) -> Attention | None:
    """How the node's scheduler differs from what the records want; None if it does not, or the state says it all.

    ``bad``: it is to leave service, so no command opens it.
    """

    def item(cause: Cause, turn: Turn, command: str, why: str, since: datetime.datetime | None) -> Attention:
        serving = place.shown == OPENED if place.shown else cause is not Cause.CLOSED
        return Attention(
            row.node, row.state, cause, since, why, turn, command, serving=serving, simulated=row.simulated
        )

    there, name = shlex.quote(place.name), shlex.quote(row.node)
    look = LOOK.get(kind, "muster node schedulers").format(there)
    if place.question:
        return item(Cause.DIFFERS, Turn.PERSON, f"muster node show {name}", place.question, place.shown_since)
    if place.held and place.waits and place.wanted == ADMITTED:
        why = f"{place.held}: it is opened once {place.cluster} shows it open, a whole test passes, or you decide"
        opens = look if bad else f"muster node open {name} --reason …"
        found = item(Cause.DIFFERS, Turn.PERSON, opens, why, place.held_since)
        return dataclasses.replace(found, serving=False)  # not as far as is known
    if place.waits:
        wanted = f"to be {place.wanted} in {place.cluster}"
        why = f"{wanted}: {place.last_error}" if place.last_error else wanted
        # It may refuse Muster's login: the doctor asks for the rights, which the node's own entry does not show.
        command = "muster doctor" if place.last_error else look
        return item(Cause.NOT_CONFIRMED, Turn.SCHEDULER, command, why, place.wanted_at)
    if place.verify:
        why = f"{place.cluster}: {place.verify}"
        return item(Cause.TEST_DUE, Turn.MUSTER, f"muster revalidate {name} --reason …", why, place.verify_since)
    if place.shown == ABSENT and row.state in (State.PRODUCTION, State.RETIRED):
        why = f"{place.cluster} does not know {place.name}: no job begins on it until it is there again"
        return item(Cause.CLOSED, Turn.PERSON, f"muster node remove {name} --reason …", why, place.shown_since)
    if row.state is State.PRODUCTION and place.wanted == ADMITTED and place.shown not in ("", OPENED):
        closed = place.shown.startswith("closed") and not place.shown.startswith("closed: tainted")
        opens = (UNDO if place.shown == CLOSED else OPEN).get(kind, "muster node schedulers").format(there)
        command = opens if closed and not bad else look
        return item(Cause.CLOSED, Turn.SCHEDULER, command, f"{place.cluster}: {place.shown}", place.shown_since)
    if place.difference:
        turn = Turn.PERSON if place.wanted == WITHDRAWN else Turn.SCHEDULER
        return item(Cause.DIFFERS, turn, look, place.difference, place.shown_since)
    return None
