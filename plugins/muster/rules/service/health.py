"""What follows from observations between tests: how a state goes on, the action, and what a shared place explains.

Pure. The policy is data (``muster_criteria.health.policy``); callers decide whether a node is idle, who drains it and
what the circuit breaker holds.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from muster.model.dags import SWEPT_EVERY
from muster.model.health import BMC, SWEEP, Observation, Track
from muster.model.nodes import Node
from muster_criteria.health.policy import WITHIN_S_MAX, Facts, HealthAction, HealthPolicy, action_on, entry_for

EVENTS_FOR = datetime.timedelta(days=1)
"""How long an event counts if its node does not leave service for it."""


def read_every_s(source: str, policy: HealthPolicy) -> float:
    """Returns the seconds between two readings of a source; inf if the source itself reports the end of a state."""
    return {SWEEP: SWEPT_EVERY.total_seconds(), BMC: policy.bmc.every_s}.get(source, math.inf)


def step(
    track: Track | None, bad: bool, at: datetime.datetime, policy: HealthPolicy, uptime_s: float | None = None,
    every_s: float = math.inf,
) -> Track | None:  # fmt: skip
    """Returns a state after one more reading; None while it was never bad, not counting ``bring_up_s``.

    A state is over after it was good for ``stable_s`` since its recovery, not since it went bad; until then a return is
    a flap, and the time that it was bad adds up. ``uptime_s``: a state that goes bad within ``bring_up_s`` of a boot
    does not count. ``every_s``: as ``read_every_s``; if a bad state was not read for more than two of these (the node
    was tested or paused, or the controller was off), only one counts. A clock that goes back adds no time; a state that
    began in the future then begins now.
    """
    coming_up = uptime_s is not None and uptime_s < policy.bring_up_s
    if track is None or track.over:
        return Track(True, at, at) if bad and not coming_up else track
    track = dataclasses.replace(track, since=min(track.since, at))
    passed = max((at - track.at).total_seconds(), 0.0)
    if track.bad:
        down = track.down_s + (passed if passed <= 2 * every_s else every_s)
        return dataclasses.replace(track, bad=bad, since=track.since if bad else at, at=at, down_s=down)
    if not bad:
        stable = (at - track.since).total_seconds() >= policy.stable_s
        return dataclasses.replace(track, at=at, over=stable)
    if coming_up:
        return track
    return dataclasses.replace(track, bad=True, since=at, at=at, flaps=track.flaps + 1)


RECENT_MAX, APART_S = 64, 60.0
"""The most times kept of one observation, and the least seconds between two of them."""


def remember(recent: Sequence[tuple[float, int]], at: float, times: int) -> list[tuple[float, int]]:
    """Returns (time, how often) of an observation, with the ``times`` it is seen ``at`` now (seconds since 1970).

    Times within a minute are merged into the first, and so are the two oldest if there are too many: the count within a
    period is never too high. Times in the future, from a clock that was ahead, move back together until the last is
    now.
    """
    ahead = max((when - at for when, _ in recent), default=0.0)
    kept = sorted((when - ahead if when > at else when, count) for when, count in recent if at - when <= WITHIN_S_MAX)
    if kept and at - kept[-1][0] < APART_S:
        kept[-1] = kept[-1][0], kept[-1][1] + times
    else:
        kept.append((at, times))
    if len(kept) > RECENT_MAX:
        kept[:2] = [(kept[0][0], kept[0][1] + kept[1][1])]
    return kept


def decide(seen: Observation, node: Node, policy: HealthPolicy, most: HealthAction) -> HealthAction:
    """Returns what follows from an observation of a node. ``most``: the gravest that its source may cause."""
    action = action_on(_facts(seen), policy, policy.mode_of({**node.labels, "rack": node.rack, "pool": node.pool}))
    return min(action, most, key=lambda each: each.rank)


def corrupts(seen: Observation, policy: HealthPolicy) -> bool:
    """Whether results may be wrong by the policy, given this observation, whatever the action on its node."""
    entry = entry_for(_facts(seen), policy)
    return entry is not None and entry.corrupts


def _facts(seen: Observation) -> Facts:
    track = seen.track
    now = seen.last_seen.timestamp()
    return Facts(
        seen.check, seen.severity, seen.count, track.down_s if track else 0.0, track.flaps if track else 0, seen.rate,
        tuple((now - at, times) for at, times in seen.recent),
    )  # fmt: skip


Place = tuple[bool, str]
"""Whether its nodes are simulated, and its name."""


@dataclasses.dataclass(frozen=True)
class Common:
    """A check that enough nodes of one place show at once to blame the place. ``place``: "leaf l3"; ``simulated``: of
    the simulated nodes there; ``nodes``: all that showed it at once; ``seen``: the ids of the observations, without
    those of nodes that showed it again alone.
    """

    simulated: bool
    place: str
    check: str
    nodes: tuple[str, ...]
    of: int
    seen: frozenset[int]

    @property
    def sentence(self) -> str:
        """For a person."""
        return (
            f"{len(self.nodes)} of the {self.of} nodes of {self.place} show {self.check} at once: look at what they "
            f"share (switch, power, cooling, network, a new image); none of them leaves service for that: "
            f"{', '.join(self.nodes[:20])}"
        )


def common(observations: Iterable[Observation], nodes: Sequence[Node], policy: HealthPolicy) -> list[Common]:
    """Returns the checks that a share of a place's nodes shows at once, "all nodes" being a place too. Real and
    simulated nodes of a place are counted apart.

    ``nodes``: those in service. An observation belongs to a place if enough nodes showed the check within ``within_s``
    of when it was last seen; for BMCs, which are read less often, the time between two readings is added. Its age does
    not matter: that of a node no longer read stays, and so does an event that is not repeated, while the same nodes
    serve. To last longer it has to be noted (``OF_PLACE``), since shares are of the nodes that serve now.
    """
    place = policy.place
    members: collections.Counter[Place] = collections.Counter()
    for node in nodes:
        members.update(_places_of(node, place.labels))
    showing: dict[tuple[Place, str], list[Observation]] = collections.defaultdict(list)
    known = {node.name: node for node in nodes}
    for seen in observations:
        if not policy.is_place(seen.check) or seen.over or seen.node not in known:
            continue
        if not seen.most.leaves and seen.source != SWEEP:
            continue  # else a source that may drain no node could keep a rack's from being drained
        for where in _places_of(known[seen.node], place.labels):
            showing[where, seen.check].append(seen)
    found = []
    for (where, check), those in sorted(showing.items()):
        within_s = place.within_s + (policy.bmc.every_s if any(each.source == BMC for each in those) else 0.0)
        enough = max(place.nodes, math.ceil(place.share * members[where]))
        at_once, by = _at_once(those, within_s, enough)
        if at_once:
            ids = frozenset(each.id for each in at_once)
            found.append(Common(*where, check, tuple(sorted(by)), members[where], ids))
    return found


def _at_once(those: Sequence[Observation], within_s: float, enough: int) -> tuple[list[Observation], set[str]]:
    """Returns the observations that ``enough`` nodes showed within ``within_s`` of their last time, and these nodes."""
    if len({each.node for each in those}) < enough:
        return [], set()
    begins, asks, ends = range(3)
    steps = [(each.last_seen.timestamp(), asks, each) for each in those]
    for each in those:
        for begin, end in _shown(each):
            steps += [(begin - within_s, begins, each), (end + within_s, ends, each)]
    found, by, showing = [], set[str](), collections.Counter[str]()
    for _, what, each in sorted(steps, key=lambda step: step[:2]):
        if what != asks:
            showing[each.node] += 1 if what == begins else -1
            if not showing[each.node]:
                del showing[each.node]
        elif len(showing) >= enough:
            found.append(each)
            by |= showing.keys()
    return found, by


def _shown(seen: Observation) -> set[tuple[float, float]]:
    """When an observation was shown, (from, until) in seconds since 1970; a state that is bad also since it is."""
    last, track = seen.last_seen.timestamp(), seen.track
    since = min(track.since.timestamp(), last) if track and track.bad else last
    return {(since, last), *((at, at) for at, _ in seen.recent)}


def _places_of(node: Node, labels: Iterable[str]) -> list[Place]:
    """Returns the places that a node is in: "rack r12", "leaf l3", and all nodes."""
    known: Mapping[str, str] = {**node.labels, "rack": node.rack}
    names = [f"{label} {known[label]}" for label in labels if known.get(label)]
    return [(node.simulated, name) for name in (*names, "the fleet")]


def theirs(observations: Iterable[Observation], shared: Sequence[Common]) -> list[Observation]:
    """Returns the observations that no shared place explains."""
    not_theirs = frozenset[int]().union(*(each.seen for each in shared))
    return [each for each in observations if each.id not in not_theirs]


def due(observations: Iterable[Observation], nodes: Collection[str]) -> dict[str, Observation]:
    """Returns {node: the observation for which it leaves service}: the gravest that is not over and not acted upon.

    A state that is good at the moment withdraws no node.
    """
    found: dict[str, Observation] = {}
    for each in observations:
        good = each.track is not None and not each.track.bad
        if not each.action.leaves or each.over or good or each.acted or each.node not in nodes:
            continue
        if each.node not in found or each.action.rank > found[each.node].action.rank:
            found[each.node] = each
    return found
