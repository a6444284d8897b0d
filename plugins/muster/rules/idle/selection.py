"""Selects the idle production nodes to test now, and which stages of the test. Pure.

Nodes that wait in revalidation and those whose test is requested come first, in this order, and take the whole test.
Then two lines take turns. One takes the whole test: nodes that lack a stage, or took one longer than
``Limits.whole_after`` ago. The other holds all nodes, by the worth of their best stages beyond the price of the minutes
(``muster.rules.idle.worth``); nodes whose last tests were inconclusive or preempted come first, a few times. After
that, a test without a result delays the next one too: otherwise a node that never passes would take all turns. A node
is not tested if the backend does not know it, a run holds it, a person paused its tests or is asked about it, its test
was refused just now, it rests after the last one, the circuit breaker bars it, or a limit is reached.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from muster.model.nodes import Node
from muster.model.states import SERVING, State
from muster.rules.idle.capacity import NO_SIGNS, Limits, Room, Signs
from muster.rules.lifecycle.transitions import INCONCLUSIVE_BUDGET
from muster_criteria.stages import STAGES

if TYPE_CHECKING:
    from muster.rules.idle import worth
    from muster.rules.idle.history import Clocks, Numbers
    from muster.rules.idle.past import Risk

Passes = Mapping[str, Mapping[str, datetime.datetime]]
"""By node and stage, when it was last tested and did not fail, as ``store.verdicts.stage_tests``; what is missing
never was.

A stage that warns or ends PROVISIONAL counts: else a node that never passes it would take the turn of all others.
"""

STEP = datetime.timedelta(minutes=5)
"""How often ``idle_revalidation`` looks again for a node to test."""


@dataclasses.dataclass(frozen=True)
class Idle:
    """Whether a node is in service and unused; ``why``: the reason if not.

    ``requested``: by whom and why a test of it is requested in its scheduler, and ``since`` when, where known.
    """

    idle: bool
    why: str = ""
    requested: str = ""
    since: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True)
class Planned:
    """One node to test: the stages, their minutes, the probability that it has a hidden defect, and the reason."""

    node: str
    stages: tuple[str, ...]
    minutes: float
    suspicion: float
    why: str


@dataclasses.dataclass(frozen=True)
class Choice:
    """``chosen``: most urgent first. ``passed_over``: by node, why each other production node is not tested."""

    chosen: tuple[Planned, ...]
    passed_over: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known at ``now`` of the nodes that may be tested, and the limits.

    ``idle``: by node, from the backend (missing: not idle). ``barred``: returns why the circuit breaker keeps a node in
    production, or "". ``risk``: learned from the fleet's failures; None: that of the public records. Nodes in
    revalidation or leased by a run count as tested; ``leased`` nodes of every state draw power, also new ones in
    burn-in, except those ``queued`` for a slot. ``minutes``: by SKU and stage, at the level of the tests; a SKU that is
    missing has those of the accuracy bench.
    """

    nodes: Sequence[Node]
    now: datetime.datetime
    idle: Mapping[str, Idle]
    passes: Passes
    limits: Limits
    signs: Mapping[str, Signs] = dataclasses.field(default_factory=dict)
    leased: Collection[str] = ()
    queued: Collection[str] = ()
    risk: Risk | None = None
    barred: Callable[[Node], str] = lambda _: ""
    minutes: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def sign(self, node: Node) -> Signs:
        """Returns the node's signs; NO_SIGNS if there is none."""
        return self.signs.get(node.name, NO_SIGNS)

    def looked_at(self, node: Node) -> Mapping[str, datetime.datetime]:
        """Returns {stage: when it was last tested}, with a result that counts or, if that is not repeated at once,
        without one. A stage that was never tested is missing.
        """
        passes, in_vain = self.passes.get(node.name, {}), self.sign(node).in_vain
        return {**passes, **in_vain} if in_vain and not _again(node, self) else passes

    @functools.cached_property
    def _serving(self) -> int:
        return sum(node.state in SERVING for node in self.nodes)

    def rest(self, node: Node) -> datetime.timedelta:
        """Returns how long the node rests after its last test."""
        minutes = self.minutes.get(node.sku, {})
        return self.limits.rest(sum(minutes.get(stage, 0.0) for stage in self.sign(node).took), self._serving)

    def kinds(self) -> list[Known]:
        """Returns what is known of the real nodes and of the simulated ones: the limits apply to each separately."""
        kinds = sorted({node.simulated for node in self.nodes})
        of = [[node for node in self.nodes if node.simulated is kind] for kind in kinds]
        return [dataclasses.replace(self, nodes=nodes) for nodes in of]

    def room(self) -> Room:
        """Returns the room that the tests of leased nodes leave."""
        return Room.left_by(self.nodes, self.limits, self.signs, self.leased, self.queued)


def choose(known: Known) -> Choice:
    """Returns the nodes to test now. First come those that wait in revalidation, out of production until they pass.

    Simulated nodes come after all real ones.
    """
    choices = [_choose(each) for each in known.kinds()]
    passed_over = {name: why for each in choices for name, why in each.passed_over.items()}
    return Choice(tuple(planned for each in choices for planned in each.chosen), passed_over)


def _choose(known: Known) -> Choice:
    ready, passed_over = sorted_out(known)
    if known.limits.closed or not ready:
        return Choice((), passed_over | {node.name: known.limits.closed for node in ready})
    room = known.room()
    chosen: list[Planned] = []
    order, planned = ranked(ready, known)
    passed_over |= too_long(ready, order, known.limits)
    for place in order:
        node = ready[place]
        sign = known.sign(node)
        if barrier := room.barrier(node, sign):
            passed_over[node.name] = room.why(node, *barrier)
        else:
            room.take(node, sign)
            chosen.append(planned(place))
    return Choice(tuple(chosen), passed_over)


def sorted_out(known: Known) -> tuple[list[Node], dict[str, str]]:
    """Returns the nodes in service that may be tested, and by node why another may not."""
    passed_over: dict[str, str] = {}
    ready: list[Node] = []
    for node in known.nodes:
        if node.state not in SERVING:
            continue
        # The breaker keeps nodes in production; one that waits in revalidation has left it.
        why = _why_not(node, known) or (known.barred(node) if node.state is State.PRODUCTION else "")
        if why:
            passed_over[node.name] = why
        else:
            ready.append(node)
    return ready, passed_over


def facts_of(nodes: Sequence[Node], known: Known) -> worth.Facts:
    """Returns what is known of these nodes, in their order; a stage without a test counts from the arrival."""
    import numpy as np  # here, as a DAG file imports this module and may load nothing heavy

    from muster.rules.idle import worth
    from muster.rules.idle.history import Clocks

    came = [node.machine_since or known.now for node in nodes]
    # One flat list of plain numbers: of a large fleet, rows of times take several times as long.
    passed = [
        passes.get(stage, arrived).timestamp()
        for arrived, passes in zip(came, (known.passes.get(node.name, {}) for node in nodes), strict=True)
        for stage in STAGES
    ]
    since = (known.now.timestamp() - np.array(passed)) / 3600.0
    return worth.Facts(
        hours_since=np.maximum(since, 0.0).reshape(len(nodes), len(STAGES)),
        clocks=known.risk.clocks(nodes) if known.risk else Clocks.without_faults(len(nodes)),
    )


def cost_of(nodes: Sequence[Node], known: Known) -> Numbers:
    """Returns the minutes of each set of stages (``worth.subsets()``) on these nodes, in their order."""
    import numpy as np

    from muster.rules.idle import worth

    usual = dict(zip(STAGES, worth.usual_minutes().tolist(), strict=True))
    place = {sku: at for at, sku in enumerate({node.sku for node in nodes})}
    minutes = [[known.minutes.get(sku, usual)[stage] for stage in STAGES] for sku in place]
    of_sku = worth.cost_of(np.array(minutes).reshape(-1, len(STAGES)))
    return of_sku[np.array([place[node.sku] for node in nodes], dtype=np.int64)]


def too_long(ready: Sequence[Node], order: Sequence[int], limits: Limits) -> dict[str, str]:
    """{node: why it has no place in the order}."""
    why = f"each set of its stages takes more than {limits.minutes:g} minutes, and its whole test is not overdue"
    return {ready[at].name: why for at in set(range(len(ready))).difference(order)} if len(order) < len(ready) else {}


def ranked(ready: Sequence[Node], known: Known, *, by_slots: bool = True) -> tuple[list[int], Callable[[int], Planned]]:
    """Returns the indices of ``ready``, most urgent first, and a function that plans one node: a large fleet needs few
    plans. A node is left out if no set of its stages fits into ``Limits.minutes`` and no whole test is due.

    ``by_slots``: the overdue and the others take turns by test, as when all begin at one time; otherwise by minutes.
    """
    import numpy as np

    from muster.rules.idle import hazard, worth

    now, limits, signs = known.now, known.limits, [known.sign(node) for node in ready]
    facts = facts_of(ready, known)
    model = known.risk.model if known.risk else hazard.public_prior().model
    first = np.array([2 * (node.state is State.REVALIDATION) + bool(sign.requested)
                      for node, sign in zip(ready, signs, strict=True)], dtype=np.int64)  # fmt: skip
    whole, cost = first > 0, cost_of(ready, known)
    fits = cost <= limits.minutes
    fits[:, 0] |= whole
    for at in (at for at, node in enumerate(ready) if _inconclusive(node, known)):
        # Repeat the stages without a result: otherwise tests of other stages would always come first.
        fits[at] &= [each.issuperset(signs[at].in_vain) for each in map(set, worth.subsets())]
        fits[at, 0] |= not fits[at].any()
    of = worth.worth(facts, model, fits)
    never = np.array([len(known.passes.get(node.name, {})) < len(STAGES) for node in ready], dtype=np.bool_)
    again = np.array([_again(node, known) for node in ready], dtype=np.bool_)
    # The order counts tests without a result too; the reason that is stated counts only tests with one.
    due, hours = never.copy(), facts.hours_since.max(axis=1)
    if tried := [at for at, sign in enumerate(signs) if sign.in_vain and not again[at]]:
        nodes = [ready[at] for at in tried]
        looked = dataclasses.replace(known, passes={node.name: known.looked_at(node) for node in nodes})
        seen = facts_of(nodes, looked)
        due[tried] = [len(looked.passes[node.name]) < len(STAGES) for node in nodes]
        hours[tried] = seen.hours_since.max(axis=1)
        of.value[tried] = worth.worth(seen, model, fits[tried]).value
    first[[at for at in np.flatnonzero(whole).tolist() if _waits_its_turn(ready[at], signs[at])]] = 0
    overdue = (due | whole | (hours >= limits.whole_after.total_seconds() / 3600.0)) & (first == 0)
    slots = known.room().at_once
    free = max(slots - int((first > 0).sum()), 0)
    turn = worth.in_turn(of.value, cost, hours, overdue, free * limits.minutes if free else 0.0, again=again,
                         under_way=_under_way(known, slots), by_slots=by_slots)  # fmt: skip
    # Lists, since a single value of an array is slow to read, and a large fleet reads many.
    subsets = worth.subsets()
    late, best = (turn.late | whole).tolist(), turn.stages.tolist()
    suspected, days = (each.tolist() for each in (of.suspicion, facts.hours_since.max(axis=1) / 24.0))
    last_back = np.minimum(facts.clocks.since_any, facts.clocks.since_swap)
    mentioned = ((last_back < RECENT_H) | (facts.clocks.neighbours > 0)).tolist()

    def planned(at: int) -> Planned:
        chosen = 0 if late[at] else best[at]
        last = "no whole test of it counts" if never[at] else f"whole test {days[at]:.1f} days ago"
        last = f"{last}, which is overdue" if overdue[at] and late[at] else last
        contact = ready[at].contact_at
        if contact is not None and now - contact >= limits.whole_after:
            last = f"back after {(now - contact).total_seconds() / 86400.0:.1f} days without contact; {last}"
        ended = "was inconclusive" if ready[at].inconclusive else "was not made"
        last = f"its last test {ended}; {last}" if again[at] else last
        past = ", ".join([last, *(_past(facts.clocks, at) if mentioned[at] else ())])
        why = signs[at].requested or f"{suspected[at]:.2%} likely to have a hidden defect: {past}"
        if ready[at].state is State.REVALIDATION:
            why = "it waits in revalidation, out of production until it passes"
        return Planned(ready[at].name, subsets[chosen], float(cost[at, chosen]), suspected[at], why)

    return turn.order[np.argsort(-first[turn.order], kind="stable")].tolist(), planned


def _under_way(known: Known, slots: int) -> tuple[float, float]:
    """How many overdue whole tests and how many others run, so that over time each line has half of the slots.

    Where the slots cannot be halved, the lines take the odd one in turns.
    """
    late = others = 0
    for node in known.nodes:
        if node.name in known.leased and node.state in SERVING:
            looked, sign = known.looked_at(node), known.sign(node)
            overdue = len(looked) < len(STAGES) or known.now - min(looked.values()) >= known.limits.whole_after
            overdue |= bool(sign.requested) and _waits_its_turn(node, sign)
            late, others = late + overdue, others + (not overdue)
    whole = known.limits.minutes if math.isfinite(known.limits.minutes) else 45.0
    turn = int(known.now.timestamp() / 60.0 / whole) % 2 if slots % 2 else 0
    return float(late + turn), float(others)


def _past(clocks: Clocks, at: int) -> list[str]:
    """What the node's failures say of it, as phrases."""
    from muster.rules.idle.history import GROUPS

    found = []
    if (hours := float(clocks.since_any[at])) < RECENT_H:
        group = GROUPS[int(clocks.since_same[at].argmin())]
        found.append(f"back {hours / 24.0:.1f} days ago from a fault of group {group}")
    elif (hours := float(clocks.since_swap[at])) < RECENT_H:
        found.append(f"back {hours / 24.0:.1f} days ago with another part")
    if count := int(clocks.neighbours[at]):
        found.append(f"{count} failed neighbour{'s' if count > 1 else ''} in 30 days")
    return found


RECENT_H = 90 * 24.0
"""How long a return from a fault is stated as a reason."""


def _again(node: Node, known: Known) -> bool:
    """Whether the node's last test was inconclusive or not made, and that has not happened too often in a row."""
    return _inconclusive(node, known) or 0 < known.sign(node).skipped < INCONCLUSIVE_BUDGET


def _inconclusive(node: Node, known: Known) -> bool:
    """Whether tests of the node were inconclusive and a stage still lacks a result, but not too many tests in a row had
    none.
    """
    sign = known.sign(node)
    return 0 < node.inconclusive < INCONCLUSIVE_BUDGET and sign.skipped < INCONCLUSIVE_BUDGET and bool(sign.in_vain)


def _waits_its_turn(node: Node, sign: Signs) -> bool:
    """Whether the next test, though requested, waits its turn, since too many in a row had no result.

    After too many inconclusive ones a person is asked, whose request goes first until a test answers it. In shadow mode
    inconclusive tests are not counted, and one is enough.
    """
    often = node.inconclusive >= INCONCLUSIVE_BUDGET or node.shadow
    return sign.skipped >= INCONCLUSIVE_BUDGET or (often and sign.answered)


def _why_not(node: Node, known: Known) -> str:
    if node.name in known.leased:
        return "a run holds it"
    if node.pause:
        return f"its tests are {node.pause}"
    sign = known.sign(node)
    if sign.refused:
        return sign.refused
    if node.state is State.REVALIDATION:
        return ""
    state = known.idle.get(node.name)
    if state is None:
        return "the backend does not know whether it is idle"
    if not state.idle:
        return state.why or "it is in use"
    if _again(node, known):
        return ""
    first = bool(sign.requested) and not _waits_its_turn(node, sign)
    # A request that no test has answered: a person's comes at once; with any other, the node rests after a whole test.
    if first and not sign.answered and (state.requested or set(sign.took) != set(STAGES)):
        return ""
    looked, rest = known.looked_at(node), known.limits.after if first else known.rest(node)
    if looked and known.now < (until := max(looked.values()) + rest):
        return f"it rests after its last test until {until:%Y-%m-%d %H:%M} UTC"
    return ""
