"""Cables that contradict those of the nodes around them: a rail on another switch, or rails swapped.

Pairs of such a node are attributed to the switches that it is really connected to, so no wrong part is charged; a
person decides whether the cable or the plan is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
    """Rails on another switch than those of ``OTHERS_MIN`` nodes that otherwise share most switches with the node.

    A rail on which those nodes differ among themselves is not judged.
    """
    groups = {node: switches(links, rails) for node, links in on.items()}
    usual = [group for group, nodes in Counter(groups.values()).items() if nodes >= OTHERS_MIN]
    found = []
    for node, own in groups.items():
        near = [] if own in usual else [group for group in usual if _shares_most(own, group)]
        for rail, mine, *theirs in zip(rails, own, *near, strict=True):
            if len({*theirs}) == 1 and {mine, *theirs}.isdisjoint({""}) and mine not in theirs:
                found.append(Miscabled(node, rail, str(on[node][rail]), theirs[0]))
    return tuple(found)


def _shares_most(own: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two nodes see the same switch on most rails, or the same switches on swapped rails."""
    same = sum(one == other != "" for one, other in zip(own, others, strict=True))
    return 2 * same > len(own) or sorted(own) == sorted(others)


def judge_cabling(topology: Topology, block: BlockFindings) -> None:
    """Warns of each node with such cables."""
    for node in dict.fromkeys(each.node for each in topology.miscabled):
        mine = [each for each in topology.miscabled if each.node == node]
        observed, expected = (
            listed([f"rail {each.rail} on {switch}" for each, switch in said], most=8)
            for said in ([(each, each.seen) for each in mine], [(each, each.expected) for each in mine])
        )
        finding = Finding(
            rule="cabling", metric="topology", device="node", severity=Severity.WARNING, fault_class=FaultClass.CABLE,
            action=Action.INSPECT, observed=observed, expected=expected,
            source="docs/science.md#isolation-in-the-fabric",
            summary=f"Cabled unlike nodes around it: {observed}, not {expected}.",
            labels=tuple(("rail", each.rail) for each in mine if len(mine) == 1),
        )  # fmt: skip
        block.add(node, finding)
