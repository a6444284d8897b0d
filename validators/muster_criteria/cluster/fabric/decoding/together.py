"""What is low only with all rails at once: no test of one rail shows what the rails of a node share.

A rail that is good alone and low together with every partner is a part of its node, and two such rails are one part of
the node; most rails mean congestion or routing, which is no part's fault, unless nothing arrives. None of these fails
its node: the cause may lie in what the node shares with others.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from muster_criteria.cluster.fabric.decoding import nodes, shared, switches
from muster_criteria.cluster.fabric.decoding.cells import Cells, laid_out
from muster_criteria.cluster.fabric.decoding.levels import NOISE_MAX, level
from muster_criteria.cluster.fabric.decoding.parts import Evidence, Part, PartKind, Symptom
from muster_criteria.cluster.fabric.rounds import Flags, RoundResult
from muster_criteria.cluster.fabric.topology import Topology


def laid_out_at_once(topology: Topology, results: Sequence[RoundResult], alone: Cells) -> Cells:
    """The cells with all rails at once. A cell that a part found ``alone`` explains is not low. In a round whose rates
    scatter too much to show what is slow, only cells that carried nothing are low, and none is good; if all rounds are
    like that, a cell that carried most of the usual rate is good and clears one that once carried nothing.

    Each rail is compared with the same rail on other nodes: together, rails may be uneven by design.
    """
    rails = range(len(topology.rails))
    cells = laid_out(topology, [level(topology, each.all_at_once(), rails) for each in results])
    quiet = _quiet(cells)
    low = cells.low & (quiet | (cells.share == 0.0)) & ~alone.explained
    return dataclasses.replace(cells, low=low, good=cells.good & (quiet | ~quiet.any()))


def not_judged(cells: Cells, results: Sequence[RoundResult], alone: Cells) -> frozenset[tuple[int, int]]:
    """(Node, rail) whose rate ``alone`` was compared, and which carried something with all rails at once while no round
    shows whether that was slow. ``cells``: from ``laid_out_at_once``, before parts are looked for."""
    carried: Flags = np.zeros(cells.good.shape[1:], dtype=bool)
    for each in results:
        if each.together is not None:
            for row, pair in enumerate(each.round.pairs):
                carried[list(pair)] |= each.together[row] > 0.0
    quiet = _quiet(cells)
    judged = ((cells.low | (cells.good & ~cells.bare) | alone.explained) & quiet).any(axis=0)
    found = np.argwhere(carried & (alone.low | (alone.good & ~alone.bare)).any(axis=0) & ~judged)
    return frozenset((int(node), int(rail)) for node, rail in found)


def _quiet(cells: Cells) -> Flags:
    """Which rounds show what is slow, shape (rounds, 1, 1); none if half of them or more scatter too much, since with
    so few cells a round may look quiet by chance."""
    quiet: Flags = np.array([each.noise <= NOISE_MAX for each in cells.levels])
    quiet &= 2 * quiet.sum() > len(quiet)
    return quiet[:, None, None]


def low_together(cells: Cells) -> list[Evidence]:
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
        share = float(np.median([each.share for each in rails]))
        first = rails[0] if len(rails) == 1 else dataclasses.replace(rails[0], part=Part(PartKind.NODE, node))
        measured = (cells.low | cells.good)[:, node].any(axis=0).sum()
        if share > 0.0 and 2 * len(rails) > measured:  # all nodes of a small leaf, which ``low_nodes`` leaves out
            found.append(dataclasses.replace(first, part=Part(PartKind.CONGESTION, node), share=share))
        else:
            of_nodes.append(dataclasses.replace(first, share=share))
    found += shared.grouped(cells, of_nodes, everywhere)
    return [dataclasses.replace(each, symptom=Symptom.TOGETHER) for each in found]
