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
    usual = [group for group, nodes in Counter(groups.values()).items() if nodes >= OTHERS_MIN]
    found = []
    for node, own in groups.items():
        alike = [(same, group) for group in usual if (same := _same(own, group)) and own not in usual]
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
    by_rack: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for node, leaf in zip(topology.nodes, topology.leaf_of, strict=True):
        by_rack[racks.get(node, "")][leaf].append(node)
    told = {each.node for each in topology.miscabled}
    for rack, on in by_rack.items():
        usual = max(on, key=lambda leaf: len(on[leaf]))
        for leaf, nodes in on.items():
            if rack and len(nodes) == 1 and len(on[usual]) >= OTHERS_MIN and nodes[0] not in told:
                yield Miscabled(nodes[0], "", topology.leaves[leaf], topology.leaves[usual])


def judge_cabling(topology: Topology, block: BlockFindings) -> None:
    """Warns of each node with such cables."""
    by_node: dict[str, list[Miscabled]] = defaultdict(list)
    for each in topology.miscabled:
        by_node[each.node].append(each)
    for node, found in by_node.items():
        rails = [each.rail for each in found]
        observed = listed([f"{_of(each)} on {each.seen}" for each in found], most=8)
        expected = listed([f"{_of(each)} on {each.expected}" for each in found], most=8)
        finding = Finding(
            rule="cabling",
            metric="topology",
            device="node",
            severity=Severity.WARNING,
            fault_class=FaultClass.CABLE,
            action=Action.INSPECT,
            observed=observed,
            expected=expected,
            source="docs/science.md#isolation-in-the-fabric",
            summary=f"Cabled unlike nodes {'around it' if rails[0] else 'of its rack'}: {observed}, not {expected}.",
            labels=(("rail", " ".join(rails)),) if rails[0] else (),
        )
        block.add(node, finding)


def _of(each: Miscabled) -> str:
    return f"rail {each.rail}" if each.rail else "the node"
