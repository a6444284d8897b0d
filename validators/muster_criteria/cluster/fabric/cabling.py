"""Cables that contradict those of the nodes around them: a rail on another switch, two rails swapped, another leaf.

The pairs of such a node run between the switches that it really is on, so that nothing they show is charged to a wrong
part; whether the cable or the plan is wrong, a person decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from muster_criteria.cluster.fabric.topology import Miscabled, Topology
from muster_criteria.cluster.model import OTHERS_MIN, BlockFindings
from muster_criteria.model import Action, FaultClass, Finding, Severity
from muster_criteria.words import listed


class Link(NamedTuple):
    """The switch that a port of a node sees, and the switch's port where it is known."""

    switch: str
    port: str = ""

    def __str__(self) -> str:
        return f"{self.switch} (port {self.port})" if self.port else self.switch


def switches(links: Mapping[str, Link], rails: Sequence[str]) -> tuple[str, ...]:
    """A node's switch on each rail, "" on one that it lacks."""
    return tuple(links[rail].switch if rail in links else "" for rail in rails)


def miscabled_rails(on: Mapping[str, Mapping[str, Link]], rails: Sequence[str]) -> tuple[Miscabled, ...]:
    """Rails of a few nodes on another switch than ``OTHERS_MIN`` others with which they share most switches."""
    groups = {node: switches(links, rails) for node, links in on.items()}
    usual = {group for group, nodes in Counter(groups.values()).items() if nodes >= OTHERS_MIN}
    found = []
    for node, own in groups.items():
        alike = [] if own in usual else [(same, group) for group in usual if (same := _same(own, group))]
        for rail, mine, theirs in zip(rails, own, max(alike)[1], strict=True) if alike else ():
            if mine and theirs and mine != theirs:
                found.append(Miscabled(node, rail, str(on[node][rail]), theirs))
    return tuple(found)


def _same(own: Sequence[str], others: Sequence[str]) -> int:
    """On how many rails two nodes see the same switch, and 1 at least where one sees the other's on other rails; 0
    unless these are most."""
    same = sum(one == other for one, other in zip(own, others, strict=True))
    swapped = sorted(own) == sorted(others)
    return max(same, 1) if swapped or 2 * same > len(own) else 0


def miscabled_nodes(topology: Topology, racks: Mapping[str, str]) -> Iterator[Miscabled]:
    """Nodes with a leaf that none of their rack has but they, where ``OTHERS_MIN`` others or more share one.

    ``racks``: of each node, "" where it is not known.
    """
    told = {each.node for each in topology.miscabled}
    by_rack: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for node, leaf in zip(topology.nodes, topology.leaf_of, strict=True):
        by_rack[racks.get(node, "")].append((leaf, node))
    for rack, placed in by_rack.items():
        nodes = Counter(leaf for leaf, _ in placed)
        ((usual, most),) = nodes.most_common(1)
        for leaf, node in placed:
            if rack and most >= OTHERS_MIN and nodes[leaf] == 1 and node not in told:
                yield Miscabled(node, "", topology.leaves[leaf], topology.leaves[usual])


def judge_cabling(topology: Topology, block: BlockFindings) -> None:
    """Warns of each node with such cables."""
    for node in dict.fromkeys(each.node for each in topology.miscabled):
        mine = [each for each in topology.miscabled if each.node == node]
        observed, expected = (
            listed([f"{f'rail {each.rail}' if each.rail else 'the node'} on {switch}" for each, switch in said], most=8)
            for said in ([(each, each.seen) for each in mine], [(each, each.expected) for each in mine])
        )
        around = "around it" if mine[0].rail else "of its rack"
        finding = Finding(
            rule="cabling", metric="topology", device="node", severity=Severity.WARNING, fault_class=FaultClass.CABLE,
            action=Action.INSPECT, observed=observed, expected=expected,
            source="docs/science.md#isolation-in-the-fabric",
            summary=f"Cabled unlike nodes {around}: {observed}, not {expected}.",
            labels=tuple(("rail", each.rail) for each in mine[:1] if each.rail and len(mine) == 1),
        )  # fmt: skip
        block.add(node, finding)
