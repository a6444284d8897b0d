"""The first rounds: partners on the same leaf, on another leaf of the pod, and in another pod.

Between leaves the pairs follow a circle schedule of *leaves*, transposed: nodes in slot s of their leaf follow round s
of the schedule. One round of tests thus covers as many pairs of leaves as a circle schedule of nodes does in as many
rounds as a leaf has nodes: all of them, if a leaf has at least as many nodes as there are other leaves. Without leaves,
these are three rounds of the plain circle schedule. No node meets the same partner in two rounds, as far as the numbers
allow.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

from muster_criteria.cluster.fabric.rounds import Kind, Round
from muster_criteria.cluster.fabric.topology import Topology

Pair = tuple[int, int]
Matching = list[Pair]
ROUNDS = 3

FLOWS_FAR = 2
"""Flows over which a rail is measured between pods. Each pair of leaves has one pair of nodes there, so each hot spot
makes a path a suspect; over one flow these were more than a leaf's nodes can confirm in one round."""


def screening(topology: Topology, seed: int) -> tuple[Round, ...]:
    """The rounds before any confirmation, three at most; fewer where there are fewer different pairs."""
    draw = random.Random(seed)
    ranked = [draw.sample(members, len(members)) for members in topology.members]
    if len(ranked) == 1:
        plans = [(Kind.SAME_LEAF, pairs) for pairs in _circles(ranked[0])]
    else:
        plans = _by_leaves(topology, ranked)
    return tuple(
        Round(at + 1, kind, tuple(pairs), FLOWS_FAR if kind is Kind.OTHER_POD else 1)
        for at, (kind, pairs) in enumerate(plans)
        if pairs
    )


def circle_round(count: int, number: int) -> Matching:
    """One of the rounds of the circle schedule of ``count`` items: disjoint pairs, no pair twice in a cycle.

    A cycle has count − 1 rounds for an even count and count rounds for an odd one, in which one item rests.
    """
    even = count + count % 2
    last, turn = even - 1, number % (even - 1)
    pairs = [(last, turn), *(((turn + k) % last, (turn - k) % last) for k in range(1, even // 2))]
    return [ordered(a, b) for a, b in pairs if a < count and b < count]


def ordered(a: int, b: int) -> Pair:
    """The pair, the lower node first."""
    return (a, b) if a < b else (b, a)


def _circles(nodes: Sequence[int]) -> Iterator[Matching]:
    cycle = len(nodes) - 1 + len(nodes) % 2
    for number in range(min(ROUNDS, cycle if len(nodes) > 1 else 0)):
        yield [ordered(nodes[a], nodes[b]) for a, b in circle_round(len(nodes), number)]


def _by_leaves(topology: Topology, ranked: list[list[int]]) -> list[tuple[Kind, Matching]]:
    slots = max(map(len, ranked))
    within, between = _within_pods(topology), _between_pods(topology)
    first = within or between
    # With one kind only, the second round goes on where the first one stopped.
    second = (between, 0) if within and between else (first, slots)
    plans = [
        (Kind.SAME_LEAF, same_leaf(ranked)),
        (Kind.OTHER_LEAF if within else Kind.OTHER_POD, _transposed(ranked, first, 0, 0)),
        (Kind.OTHER_POD if between else Kind.OTHER_LEAF, _transposed(ranked, *second, 1)),
    ]
    met: set[Pair] = set()
    for _, pairs in plans:
        if pairs:
            pairs += _leftover(ranked, pairs, met)
            met |= set(pairs)
    return [(kind, pairs) for kind, pairs in plans if pairs]


def same_leaf(ranked: Sequence[Sequence[int]]) -> Matching:
    """Pairs the nodes of each leaf in their order."""
    return [ordered(a, b) for nodes in ranked for a, b in zip(nodes[::2], nodes[1::2], strict=False)]


Matchings = list[Callable[[], Matching]]
"""A cycle of matchings of leaves, each made when it is needed: a large fabric has many more than slots."""


def _within_pods(topology: Topology) -> Matchings:
    pods = _leaves_of_pods(topology)
    cycle = max((len(pod) - 1 + len(pod) % 2 for pod in pods if len(pod) > 1), default=0)

    def at(number: int) -> Matching:
        return [ordered(pod[a], pod[b]) for pod in pods if len(pod) > 1 for a, b in circle_round(len(pod), number)]

    return [lambda number=number: at(number) for number in range(cycle)]  # type: ignore[misc]


def _between_pods(topology: Topology) -> Matchings:
    pods = _leaves_of_pods(topology)
    if len(pods) < 2:
        return []
    largest = max(map(len, pods))
    cycle = len(pods) - 1 + len(pods) % 2

    def at(turn: int, shift: int) -> Matching:
        pairs = []
        for p, q in circle_round(len(pods), turn):
            small, large = sorted((pods[p], pods[q]), key=len)
            pairs += [ordered(leaf, large[(i + shift) % len(large)]) for i, leaf in enumerate(small)]
        return pairs

    return [
        lambda turn=turn, shift=shift: at(turn, shift)  # type: ignore[misc]
        for shift in range(largest)
        for turn in range(cycle)
    ]


def _leaves_of_pods(topology: Topology) -> list[list[int]]:
    pods: list[list[int]] = [[] for _ in topology.pods]
    for leaf, pod in enumerate(topology.pod_of):
        pods[pod].append(leaf)
    return [pod for pod in pods if pod]


def _transposed(ranked: list[list[int]], matchings: Matchings, shift: int, rotation: int) -> Matching:
    """Slot s of every leaf follows matching s + shift. ``rotation`` moves the nodes of each leaf to other slots."""
    pairs = []
    for slot in range(max(map(len, ranked))):
        for one, other in matchings[(slot + shift) % len(matchings)]():
            if slot < min(len(ranked[one]), len(ranked[other])):
                a, b = (ranked[leaf][(slot + rotation * leaf) % len(ranked[leaf])] for leaf in (one, other))
                pairs.append(ordered(a, b))
    return pairs


def _leftover(ranked: list[list[int]], pairs: Collection[Pair], met: Collection[Pair]) -> Matching:
    """Pairs the nodes left without a partner: between leaves, then within the largest leaf. ``met``: pairs of earlier
    rounds."""
    taken = {node for pair in pairs for node in pair}
    rest = [[node for node in nodes if node not in taken] for nodes in ranked]
    found = across(rest)
    for nodes in rest:
        found += min(_circles(nodes), key=lambda turn: len(set(turn).intersection(met)), default=[])
    return found


def across(groups: Sequence[list[int]], most: int = sys.maxsize) -> Matching:
    """Takes as many pairs as possible from these groups, at most ``most``, always from the two largest."""
    heap = [(-len(nodes), at) for at, nodes in enumerate(groups) if nodes]
    heapq.heapify(heap)
    found: Matching = []
    while len(heap) > 1 and len(found) < most:
        pair = heapq.heappop(heap)[1], heapq.heappop(heap)[1]
        found.append(ordered(*(groups[at].pop() for at in pair)))
        for at in pair:
            if groups[at]:
                heapq.heappush(heap, (-len(groups[at]), at))
    return found
