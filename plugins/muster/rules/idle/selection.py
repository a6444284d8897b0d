"""Selects the idle production nodes to test now, and which stages of the test. Pure.

Nodes that wait in revalidation, those whose test is requested, and those that never took each stage, or not for
``Limits.whole_after``, come first, in this order, and take the whole test. Then come those whose last tests were
inconclusive or preempted, a few times, and those whose best stages end the most expected harm in a minute
(``muster.rules.idle.hazard``). A node is not tested if the backend does not know it, a run holds it, a person paused
its tests, its test was refused just now, the circuit breaker bars it, or a limit is reached.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.model.nodes import Node
from muster.model.states import SERVING, State
from muster.rules.idle.capacity import NO_SIGNS, Limits, Room, Signs
from muster.rules.transitions import INCONCLUSIVE_BUDGET
from muster_criteria.stages import STAGES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from muster.rules.idle import hazard

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


def nothing_bars(node: Node) -> str:
    """The circuit breaker that never opens."""
    return ""


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known at ``now`` of the nodes that may be tested, and the limits.

    ``idle``: by node, from the backend (missing: not idle). ``barred``: returns why the circuit breaker keeps a node in
    production, or "". Nodes in revalidation or leased by a run count as tested; ``leased`` nodes of every state draw
    power, as new ones do in their burn-in.
    """

    nodes: Sequence[Node]
    now: datetime.datetime
    idle: Mapping[str, Idle]
    passes: Passes
    limits: Limits
    signs: Mapping[str, Signs] = dataclasses.field(default_factory=dict)
    leased: Collection[str] = ()
    barred: Callable[[Node], str] = nothing_bars

    def sign(self, node: Node) -> Signs:
        """Returns the node's signs; NO_SIGNS if there is none."""
        return self.signs.get(node.name, NO_SIGNS)

    def room(self) -> Room:
        """Returns the room that the tests of leased nodes leave."""
        return Room.beside(self.nodes, self.limits, self.signs, self.leased)


def choose(known: Known) -> Choice:
    """Returns the nodes to test now. First come those that wait in revalidation, out of production until they pass."""
    ready, passed_over = sorted_out(known)
    if known.limits.closed:
        return Choice((), passed_over | {node.name: known.limits.closed for node in ready})
    room = known.room()
    chosen: list[Planned] = []
    for node, planned in ranked(ready, known):
        sign = known.sign(node)
        if barrier := room.barrier(node, sign):
            passed_over[node.name] = room.why(node, *barrier)
        else:
            room.take(node, sign)
            chosen.append(planned())
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


def facts_of(nodes: Sequence[Node], known: Known) -> hazard.Facts:
    """Returns what is known of these nodes, in their order; a stage without a test counts from the arrival."""
    import numpy as np  # here, as a DAG file imports this module and may load nothing heavy

    from muster.rules.idle import hazard

    now = known.now
    came = [node.machine_since or now for node in nodes]
    since = [
        [passed.get(stage, arrived) for stage in STAGES]
        for passed, arrived in ((known.passes.get(node.name, {}), at) for node, at in zip(nodes, came, strict=True))
    ]
    seen = [known.sign(node) for node in nodes]
    hours = np.array([[at.timestamp() for at in row] for row in since]).reshape(len(nodes), len(STAGES))
    counted = [(each.xids, each.repairs, each.neighbours, each.ecc, each.links, each.sliding, each.image)
               for each in seen]  # fmt: skip
    xids, repairs, neighbours, ecc, links, sliding, image = np.array(counted, dtype=np.float64).reshape(-1, 7).T
    return hazard.Facts(
        hours_since=np.maximum((now.timestamp() - hours) / 3600.0, 0.0),
        age_days=np.array([(now - at).total_seconds() / 86400.0 for at in came]),
        xids=xids,
        repairs=repairs,
        neighbours=neighbours,
        ecc=ecc,
        links=links,
        sliding=sliding,
        image=image,
    )


def by_urgency(
    names: npt.NDArray[Any],
    oldest: hazard.Numbers,
    score: hazard.Numbers,
    again: npt.NDArray[np.bool_],
    overdue: npt.NDArray[np.bool_],
    *before: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int64]:
    """Returns the places of the nodes, most urgent first: those in ``before`` (the last of it first of all), the
    ``overdue`` by the hours since their ``oldest`` stage, those to test ``again``, the others by ``score``.
    """
    import numpy as np

    first = [~each for each in (again, overdue, *before)]
    # Names last, so that equal nodes have one order.
    return np.lexsort((names, -np.where(overdue, oldest, score), *first))


def ranked(ready: Sequence[Node], known: Known) -> Iterator[tuple[Node, Callable[[], Planned]]]:
    """Yields the nodes, most urgent first, each with what makes its plan: of a large fleet few are needed."""
    if not ready:
        return
    import numpy as np

    from muster.rules.idle import hazard

    now, limits = known.now, known.limits
    facts = facts_of(ready, known)
    worth = hazard.worth(facts, limits.minutes)
    oldest = facts.hours_since.max(axis=1)
    requested = np.array([bool(known.sign(node).requested) for node in ready])
    never = np.array([len(known.passes.get(node.name, {})) < len(STAGES) for node in ready])
    waiting = np.array([node.state is State.REVALIDATION for node in ready])
    overdue = waiting | requested | never | (oldest >= limits.whole_after.total_seconds() / 3600.0)

    again = np.array([_again(node, known) for node in ready])
    # Lists, since a single value of an array is slow to read, and a large fleet reads many.
    subsets, minutes = hazard.subsets(), hazard.minutes_of().tolist()
    late, best, suspected, days = (each.tolist() for each in (overdue, worth.stages, worth.suspicion, oldest / 24.0))

    def planned(at: int) -> Planned:
        chosen = 0 if late[at] else best[at]
        name, suspicion = ready[at].name, suspected[at]
        last = "never took a whole test" if never[at] else f"whole test {days[at]:.1f} days ago"
        last = f"{last}, which is overdue" if late[at] else last
        contact = ready[at].contact_at
        if contact is not None and now - contact >= limits.whole_after:
            last = f"back after {(now - contact).total_seconds() / 86400.0:.1f} days without contact; {last}"
        ended = "was inconclusive" if ready[at].inconclusive else "was not made"
        last = f"its last test {ended}; {last}" if again[at] else last
        why = _why(suspicion, last, known.sign(ready[at]))
        why = "it waits in revalidation, out of production until it passes" if waiting[at] else why
        return Planned(name, subsets[chosen], minutes[chosen], suspicion, why)

    names = np.array([node.name for node in ready])
    order = by_urgency(names, oldest, worth.score, again, overdue, requested, waiting)
    for at in order.tolist():
        yield ready[at], functools.partial(planned, at)


def _again(node: Node, known: Known) -> bool:
    """Whether the node's last test was inconclusive or not made, and that has not happened too often in a row."""
    skipped = known.sign(node).skipped
    return 0 < node.inconclusive < INCONCLUSIVE_BUDGET or 0 < skipped < INCONCLUSIVE_BUDGET


def _why(suspicion: float, last: str, sign: Signs) -> str:
    if sign.requested:
        return sign.requested
    if sign is NO_SIGNS:  # nearly every node of a large fleet
        return f"{suspicion:.2%} likely to have a hidden defect: {last}"
    parts = [last]
    counts = (
        (sign.xids, "XID"), (sign.repairs, "repair"), (sign.neighbours, "failed neighbour"),
        (sign.ecc, "risen ECC counter"), (sign.links, "risen link counter"),
    )  # fmt: skip
    parts += [f"{count} {name}{'s' if count > 1 else ''} in 30 days" for count, name in counts if count]
    if sign.sliding:
        parts.append(f"{sign.sliding} figure{'s' if sign.sliding > 1 else ''} moving away from its own past")
    if sign.image > 1.0:
        parts.append(f"nodes with its image fail {sign.image:.1f} times as often")
    return f"{suspicion:.2%} likely to have a hidden defect: {', '.join(parts)}"


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
    if sign.requested:
        if sign.tried is not None and known.now - sign.tried < known.limits.after:
            return f"its last test ended on {sign.tried:%Y-%m-%d %H:%M} UTC, too short a time ago; {sign.requested}"
        return ""
    latest = max(known.passes.get(node.name, {}).values(), default=None)
    if latest is not None and known.now - latest < known.limits.after:
        return f"it was tested on {latest:%Y-%m-%d %H:%M} UTC, which is fresh enough"
    return ""
