"""Paths: one rail between two leaves that is low, while both ends are good elsewhere."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from muster_criteria.cluster.fabric.decoding.cells import Cells
from muster_criteria.cluster.fabric.decoding.nodes import symptom_of
from muster_criteria.cluster.fabric.decoding.parts import Evidence, Part, PartKind
from muster_criteria.cluster.fabric.rounds import Flags
from muster_criteria.cluster.fabric.topology import Indices

GRAVE = 0.4
"""Share below which a single low pair is measured again even if no leaf lies between its nodes. Two flows that collide
on a link leave half to each; within a leaf, or where leaves are not known, that is far more often the cause."""


def low_paths(cells: Cells) -> list[Evidence]:
    """Paths between leaves, and between nodes, whose cells were all low and which nothing else explains."""
    return [*_between_leaves(cells), *_between_nodes(cells)]


def uncovered(cells: Cells, found: set[Part]) -> tuple[tuple[int, int, int], ...]:
    """(Leaf, leaf, rail) of the screening for which a node's fault explains every measured cell."""
    if not cells.topology.paths:
        return ()
    once = _once(cells) & cells.cross()[:, :, None]
    judged = once & (cells.low | cells.good)
    screened = judged & ~cells.confirms[:, None, None]
    masked = np.setdiff1d(_keys(cells, screened & cells.explained), _keys(cells, judged & ~cells.explained))
    switches = {(part.a, part.rail) for part in found if part.kind in (PartKind.LEAF, PartKind.UPLINK)}
    rails = {part.rail for part in found if part.kind is PartKind.RAIL}
    keys = [_unkey(cells, flat) for flat in masked]
    return tuple(key for key in keys if not {(key[0], key[2]), (key[1], key[2])} & switches and key[2] not in rails)


def _between_leaves(cells: Cells) -> list[Evidence]:
    if not cells.topology.paths:
        return []
    cross = _once(cells) & cells.cross()[:, :, None]
    low = cross & cells.open_low()
    candidates = np.setdiff1d(_keys(cells, low), _keys(cells, cross & cells.open_good()))
    keys = _flat(cells, *np.nonzero(low))
    chosen = np.isin(keys, candidates)
    cells_of: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for key, at, node in zip(keys[chosen], *(each[chosen] for each in np.nonzero(low)[:2]), strict=True):
        cells_of[int(key)].append((int(at), int(node)))
    return [
        _evidence(cells, Part(PartKind.PATH, *_unkey(cells, key)), where) for key, where in sorted(cells_of.items())
    ]


def _between_nodes(cells: Cells) -> list[Evidence]:
    low = _once(cells) & ~cells.cross()[:, :, None] & cells.open_low()
    with np.errstate(invalid="ignore"):
        grave = low & (cells.share <= GRAVE)
    found: dict[Part, list[tuple[int, int]]] = {}
    for _, node, rail in zip(*map(list, np.nonzero(grave)), strict=True):
        pairs = np.flatnonzero(cells.partner[:, node] >= 0)
        for other in {int(cells.partner[at, node]) for at in pairs if grave[at, node, rail]}:
            rounds = [int(at) for at in pairs if cells.partner[at, node] == other]
            if not any(cells.good[at, node, rail] for at in rounds):
                part = Part(PartKind.PATH, int(node), other, int(rail), between_nodes=True)
                found[part] = [(at, int(node)) for at in rounds if cells.low[at, node, rail]]
    return [_evidence(cells, part, where) for part, where in sorted(found.items())]


def _evidence(cells: Cells, part: Part, where: list[tuple[int, int]]) -> Evidence:
    rounds, nodes = (np.array(each, dtype=np.intp) for each in zip(*where, strict=True))
    partners = cells.partner[rounds, nodes]
    share = float(np.median(cells.share[rounds, nodes, part.rail]))
    wrong = bool(cells.wrong[rounds, nodes, part.rail].any())
    for at, node in where:
        cells.explain(np.array([at]), np.array([node]), part.rail)
    touched = tuple(sorted({*map(int, nodes), *map(int, partners)}))
    numbers = tuple(sorted({cells.numbers[at] for at in rounds}))
    confirmed = len({int(at) for at in rounds if cells.confirms[at]})
    return Evidence(part, symptom_of(share, wrong), share, numbers, tuple(map(int, partners)), confirmed, touched)


def _once(cells: Cells) -> Flags:
    """Each pair's cell once, as seen from the node with the lower index."""
    return (cells.partner > np.arange(cells.partner.shape[1])[None, :])[:, :, None]


def _flat(cells: Cells, rounds: Indices, nodes: Indices, rails: Indices) -> Indices:
    """One number for each cell's (leaf, leaf, rail), the lower leaf first."""
    leaf, leaves, count = cells.topology.leaf_array, len(cells.topology.leaves), len(cells.topology.rails)
    one, other = leaf[nodes], leaf[cells.partner[rounds, nodes]]
    return (np.minimum(one, other) * leaves + np.maximum(one, other)) * count + rails


def _keys(cells: Cells, flags: Flags) -> Indices:
    return np.unique(_flat(cells, *np.nonzero(flags)))


def _unkey(cells: Cells, flat: int) -> tuple[int, int, int]:
    leaves, count = len(cells.topology.leaves), len(cells.topology.rails)
    pair, rail = divmod(int(flat), count)
    return (*divmod(pair, leaves), rail)
