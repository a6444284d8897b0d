"""Where nodes sit in the fabric: leaf and pod of each node, and the rails that all of them have.

A *rail* is one network of many: NIC i of every node (in a rail-optimised fabric with a leaf switch of its own in each
group of nodes). A *leaf* here is such a group: the nodes that share their leaf switch on every rail. A *pod* is a
group of leaves below the same spines.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]

LEAF_LABEL, POD_LABEL = "leaf", "pod"
"""Node labels. A rack is no leaf: one leaf may serve several racks, and a rack may have several."""

UNKNOWN_LINKS = f"what lies between nodes whose leaf is not known (label {LEAF_LABEL}, or MUSTER_TOPOLOGY)"
"""The place in the fabric that blocks load of whose nodes no leaf is known."""


class BadTopology(ValueError):
    """A topology that cannot be used; the message is a sentence that says where it is wrong and what to do."""


@dataclasses.dataclass(frozen=True)
class Miscabled:
    """A node's rail that sees another switch than the nodes around it: what it sees, and what they see."""

    node: str
    rail: str
    seen: str
    expected: str


@dataclasses.dataclass(frozen=True)
class Topology:
    """Nodes by index, with the index of their leaf, and of each leaf's pod.

    Raises BadTopology unless names are unique and every index exists. ``known`` is false if leaves are not known: all
    nodes then form one leaf, and leaves, uplinks and paths cannot be distinguished. ``miscabled``: rails that
    contradict most nodes; their nodes are placed by their switches.
    """

    nodes: tuple[str, ...]
    rails: tuple[str, ...]
    leaf_of: tuple[int, ...]
    leaves: tuple[str, ...]
    pod_of: tuple[int, ...]
    pods: tuple[str, ...]
    known: bool = True
    miscabled: tuple[Miscabled, ...] = ()

    def __post_init__(self) -> None:
        for kind, names in (("node", self.nodes), ("rail", self.rails), ("leaf", self.leaves), ("pod", self.pods)):
            if not names:
                raise BadTopology(f"the topology has no {kind}: name at least one")
            if len(set(names)) != len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise BadTopology(f"the topology names the {kind} {twice} twice: keep one of them")
        for of, names, into in ((self.leaf_of, self.nodes, self.leaves), (self.pod_of, self.leaves, self.pods)):
            if len(of) != len(names) or not all(0 <= index < len(into) for index in of):
                raise BadTopology(f"the topology places {len(of)} of {len(names)} into {len(into)}: the lists differ")

    @functools.cached_property
    def leaf_array(self) -> Indices:
        """Leaf of each node, shape (nodes,)."""
        return np.array(self.leaf_of, dtype=np.intp)

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """Index of each node by its name."""
        return {name: at for at, name in enumerate(self.nodes)}

    @functools.cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of each leaf, in order."""
        found: list[list[int]] = [[] for _ in self.leaves]
        for node, leaf in enumerate(self.leaf_of):
            found[leaf].append(node)
        return tuple(tuple(each) for each in found)

    @property
    def paths(self) -> bool:
        """Whether paths between leaves can be distinguished."""
        return self.known and len(self.leaves) > 1

    def loaded(self) -> tuple[str, ...]:
        """The places that traffic between these nodes goes through, by name: uplinks of leaves, ways out of pods.

        Nothing where all nodes share a leaf: a switch carries all of its ports at once. Where leaves are not known, any
        uplink may lie between them: all such blocks load one place.
        """
        if not self.known:
            return (UNKNOWN_LINKS,)
        if not self.paths:
            return ()
        out = tuple(f"pod {pod}" for pod in self.pods) if len(self.pods) > 1 else ()
        return (*(f"the uplinks of leaf {leaf}" for leaf in self.leaves), *out)


def from_records(kept: Mapping[str, Any]) -> Topology:
    """The topology from its ``dataclasses.asdict`` after JSON."""
    fields: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in kept.items()}
    return Topology(**{**fields, "miscabled": tuple(Miscabled(**each) for each in kept["miscabled"])})


def unknown(nodes: Sequence[str], rails: Sequence[str]) -> Topology:
    """The topology of nodes without a known place: one leaf, one pod."""
    return Topology(tuple(nodes), tuple(rails), (0,) * len(nodes), ("all nodes",), (0,), ("all nodes",), known=False)


def from_groups(
    leaf: Mapping[str, Hashable], rails: Sequence[str], pod: Mapping[Hashable, str] | None = None
) -> Topology:
    """The topology of nodes whose leaf is known; ``pod``: of each leaf, None for one pod.

    Raises BadTopology for a leaf without a pod if others have one.
    """
    leaves = sorted(set(leaf.values()), key=str)
    above = pod or dict.fromkeys(leaves, "all leaves")
    without = [str(each) for each in leaves if each not in above]
    if without:
        raise BadTopology(f"leaf {without[0]} is in no pod, others are: give it one, or leave all pods out")
    pods = sorted({above[each] for each in leaves})
    place = {each: at for at, each in enumerate(leaves)}
    return Topology(
        tuple(leaf),
        tuple(rails),
        tuple(place[each] for each in leaf.values()),
        tuple(map(str, leaves)),
        tuple(pods.index(above[each]) for each in leaves),
        tuple(pods),
    )


def from_labels(labels: Mapping[str, Mapping[str, str]], rails: Sequence[str]) -> Topology:
    """The topology by the nodes' labels ``leaf`` and ``pod``; unknown where no node has a leaf.

    Raises BadTopology where some nodes have the label and others lack it, or one leaf is in two pods.
    """
    leaf = {name: str(given[LEAF_LABEL]) for name, given in labels.items() if given.get(LEAF_LABEL)}
    if not leaf:
        return unknown(list(labels), rails)
    if len(leaf) < len(labels):
        lacks = next(name for name in labels if name not in leaf)
        raise BadTopology(f"{lacks} has no label {LEAF_LABEL}, others have: label it, or leave it out of the block")
    return from_groups(leaf, rails, _pods(labels, leaf))


def _pods(labels: Mapping[str, Mapping[str, str]], leaf: Mapping[str, str]) -> dict[Hashable, str]:
    pods: dict[Hashable, str] = {}
    for name, each in leaf.items():
        pod = labels[name].get(POD_LABEL)
        if pod and pods.setdefault(each, str(pod)) != str(pod):
            raise BadTopology(
                f"leaf {each} is in pod {pods[each]} by one node and in {pod} by {name}: correct the labels"
            )
    return pods


def check_named(found: Collection[str], names: Sequence[str]) -> None:
    """Raises BadTopology where a topology file lacks some of a block's nodes."""
    missing = [name for name in names if name not in found]
    if missing:
        raise BadTopology(
            f"{missing[0]} is enrolled and {len(missing)} node(s) are not in the topology file: add them to the file"
        )
