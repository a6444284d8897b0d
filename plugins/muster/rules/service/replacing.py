"""Which qualified node takes the place of a node that left production. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping

from muster.model.names import SPARE_LABEL
from muster.model.nodes import Node
from muster.model.replacing import Crossing, Fitness, Replacement, Vacancy
from muster.model.states import BROKEN, State

PERIOD = datetime.timedelta(days=90)
"""A place that was left longer ago is no longer proposed: the fleet has done without it."""
SHOWN_MAX = 20
"""The most places that have a proposal at a time."""
NEAR = "block", "pod"
"""Labels of a node that name what it shares the network with, the nearest first."""


def vacancies(crossings: Iterable[Crossing], states: Mapping[str, State]) -> list[Vacancy]:
    """Returns the places that are open, the longest first.

    ``crossings``: in their order. A node that leaves opens a place. One that enters takes its own place again, or the
    one that the records name, or the longest open one of its kind, first of nodes that are broken now (``states``).
    Only places of nodes that are broken now are returned: the others are on their way back.
    """
    open_: dict[str, Crossing] = {}
    for each in crossings:
        if not each.entered:
            open_[each.node] = each
        elif each.node in open_:
            del open_[each.node]
        elif each.replaces:
            open_.pop(each.replaces, None)
        elif like := [name for name, left in open_.items() if left.kind == each.kind]:
            del open_[next((name for name in like if states.get(name) in BROKEN), like[0])]
    return [Vacancy(each.node, each.at) for each in open_.values() if states.get(each.node) in BROKEN]


def is_free(node: Node, fell: Collection[str]) -> bool:
    """Whether a node may take a place: qualified, and it did not fall out of service, as for a warning (``fell``).

    Not one whose tests are paused, since somebody works on it, and none that is marked as a lemon.
    """
    return node.state is State.QUALIFIED and node.name not in fell and not (node.pause or node.lemon)


def candidates(
    gone: Node, nodes: Collection[Node], fell: Collection[str], clusters: Mapping[str, str] | None = None
) -> list[tuple[Node, str]]:
    """Returns the nodes that may take the place of ``gone``, each with what it shares with it. ``fell``: see is_free.

    Same SKU, both real or both simulated, and in the same scheduler's cluster (``clusters``: by node). Those of the
    same block come first, then of the same pod, then the others; within these the spares, then the longest in the
    fleet.
    """
    of = clusters or {}

    def place(node: Node) -> tuple[int, str]:
        shared = (
            (rank, f"same {label} {node.labels[label]}")
            for rank, label in enumerate(NEAR)
            if node.labels.get(label) and node.labels[label] == gone.labels.get(label)
        )
        return next(shared, (len(NEAR), ""))

    fit = [
        node for node in nodes
        if is_free(node, fell) and node.sku == gone.sku and node.simulated == gone.simulated
        and node.name != gone.name and of.get(node.name, "") == of.get(gone.name, "")
    ]  # fmt: skip
    fit.sort(key=lambda node: (place(node)[0], not node.labels.get(SPARE_LABEL), node.added_at, node.name))
    return [(node, place(node)[1]) for node in fit]


def proposals(
    open_: Iterable[Vacancy],
    nodes: Mapping[str, Node],
    fell: Collection[str],
    clusters: Mapping[str, str],
    fitness: Callable[[str], Fitness | None],
) -> list[Replacement]:
    """Returns a replacement for each place that has one, the longest open first; each node is proposed once.

    ``fell``: see is_free. ``fitness``: the evidence for a node, None if it may not be proposed. It is asked for no more
    nodes than needed.
    """
    free = {node.name: node for node in nodes.values() if is_free(node, fell)}
    found: list[Replacement] = []
    for gone in open_:
        if len(found) >= SHOWN_MAX:
            break
        for node, shared in candidates(nodes[gone.node], free.values(), fell, clusters):
            del free[node.name]
            if proven := fitness(node.name):
                found.append(Replacement(gone, node.name, shared, proven))
                break
    return found
