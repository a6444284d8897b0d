"""What is low only with all rails at once: no test of one rail shows what the rails of a node share.

A rail that is good alone and low together with every partner is a part of its node, and two of them are the node's; if
most are, it is congestion or routing, nobody's fault, unless nothing arrives. No such part fails its node: the cause
may lie in what it shares with others.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from muster_criteria.cluster.fabric import nodes, shared, switches
from muster_criteria.cluster.fabric.cells import Cells, laid_out
from muster_criteria.cluster.fabric.levels import NOISE_MAX, level
from muster_criteria.cluster.fabric.parts import Evidence, Part, PartKind, Symptom
from muster_criteria.cluster.fabric.rounds import RoundResult
from muster_criteria.cluster.fabric.topology import Topology


def laid_out_at_once(topology: Topology, results: Sequence[RoundResult], alone: Cells) -> Cells:
    """The cells with all rails at once. None is low that a part explains that was found ``alone``; where rates scatter
    too much to show what is slow, only those are that carried nothing.

    Each rail is compared with itself on other nodes: together, rails may be uneven by design.
    """
    rails = range(len(topology.rails))
    cells = laid_out(topology, [level(topology, each.all_at_once(), rails) for each in results])
    noisy = max(each.noise for each in cells.levels) > NOISE_MAX
    low = cells.low & (cells.share == 0.0) if noisy else cells.low
    return dataclasses.replace(cells, low=low & ~alone.explained)


def low_together(cells: Cells, is_named: Callable[[Evidence], bool]) -> list[Evidence]:
    """The parts that the cells of ``laid_out_at_once`` show."""
    of_nodes, found = [], []
    for each in nodes.low_nodes(cells):
        if each.share > 0.0:
            found.append(dataclasses.replace(each, part=Part(PartKind.CONGESTION, each.part.a)))
        else:
            of_nodes.append(each)
    found += switches.low_switches(cells)
    everywhere = nodes.low_everywhere(cells)
    by_node: dict[int, list[Evidence]] = defaultdict(list)
    for each in nodes.low_rails(cells, everywhere):
        by_node[each.part.a].append(each)
    for node, rails in by_node.items():
        first = rails[0] if len(rails) == 1 else dataclasses.replace(rails[0], part=Part(PartKind.NODE, node))
        of_nodes.append(dataclasses.replace(first, share=float(np.median([each.share for each in rails]))))
    found += shared.grouped(cells, of_nodes, everywhere, is_named)
    return [dataclasses.replace(each, symptom=Symptom.TOGETHER) for each in found]
