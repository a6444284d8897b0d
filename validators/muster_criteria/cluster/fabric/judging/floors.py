"""Rails against a floor of the SKU, which shows what pairs cannot if all are slow or there are too few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from muster_criteria.cluster.fabric.rounds import RoundResult
from muster_criteria.cluster.fabric.topology import Topology
from muster_criteria.cluster.model import BlockFindings, of_limit
from muster_criteria.model import Extent, Finding
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import PAIR_RATE
from muster_criteria.words import against, listed

RDMA = frozenset({"ib_write_bw", "nccl"})
"""Backends that send by RDMA (NCCL if its rail names a device); the others use sockets."""

At = tuple[str, str]
"""A node, and one of its rails."""


def pair_limits(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """The limits of a block's programme that are floors of a rail between two nodes, each for one backend."""
    return tuple(each for each in limits if each.metric == PAIR_RATE)


def judge_floors(
    topology: Topology,
    results: Sequence[RoundResult],
    limits: Mapping[str, Sequence[Limit]],
    left: Callable[[int, int, Sequence[int]], float],
    block: BlockFindings,
) -> set[At]:
    """Warns of each rail of a node that is below its floor with every partner. Returns the rails that were judged.

    ``limits``: by member. ``left``: from (node, rail, partners), the share of the floor that still applies after the
    faults already found. A floor fails no node: either end of a pair may be slow, or anything between them.
    """
    judged: set[At] = set()
    for node, name in enumerate(topology.nodes):
        for limit in limits.get(name, ()):
            best = _best(node, [each for each in results if each.backend == limit.labels["backend"]], topology)
            for at, rail in enumerate(topology.rails):
                if at not in best:
                    continue
                judged.add((name, rail))
                (rate, partners), floor = best[at], float(limit.value)
                if 0.0 < rate < floor and rate < floor * left(node, at, partners):
                    block.add(name, _finding(limit, rail, rate, [topology.nodes[each] for each in partners]))
    return judged


def without_rdma(topology: Topology, results: Sequence[RoundResult], limits: Mapping[str, Sequence[Limit]]) -> set[At]:
    """Rails with a floor for RDMA that were measured, but never by RDMA, which therefore may not work on them.

    ``limits``: as in ``judge_floors``.
    """
    by_rdma: dict[bool, set[At]] = {True: set(), False: set()}
    for result in results:
        for row, at in np.argwhere(~np.isnan(result.alone).all(axis=2)):
            ends = {(topology.nodes[node], topology.rails[at]) for node in result.round.pairs[row]}
            by_rdma[result.backend in RDMA] |= ends
    owed = {name for name in topology.nodes if any(each.labels["backend"] in RDMA for each in limits.get(name, ()))}
    return {(name, rail) for name, rail in by_rdma[False] - by_rdma[True] if name in owed}


def _best(node: int, results: Sequence[RoundResult], topology: Topology) -> dict[int, tuple[float, list[int]]]:
    """{rail: (the best rate over all partners in Gb/s, the partners)} of the rails that were measured."""
    found: dict[int, tuple[float, list[int]]] = {}
    for result in results:
        for row, pair in enumerate(result.round.pairs):
            if node not in pair:
                continue
            rates = np.fmax.reduce(result.alone[row], axis=1)
            for at in map(int, np.flatnonzero(~np.isnan(rates))):
                before, partners = found.get(at, (0.0, []))
                found[at] = max(before, float(rates[at])), [*partners, *(each for each in pair if each != node)]
    return found


def _finding(limit: Limit, rail: str, rate: float, partners: Sequence[str]) -> Finding:
    with_whom = listed(list(dict.fromkeys(partners)), most=6)
    low, least = against(rate, float(limit.value), "Gb/s")
    observed, expected = f"{low} at best, with {with_whom}", f"≥ {least} by {limit.labels['backend']}"
    summary = f"Rail {rail} {limit.meaning or 'is slow'}: {observed}. Either end, or what lies between."
    return of_limit(
        limit, "floor", PAIR_RATE, observed, expected, summary, labels=(("rail", rail),),
        extent=Extent(rate, "Gb/s", "lower"),
    )  # fmt: skip
