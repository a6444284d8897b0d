"""What a part can have caused: cells that went over it, and only what its symptom explains."""

from __future__ import annotations

from muster_criteria.cluster.fabric.decoding.parts import OF_THE_NODE, Evidence, PartKind, Symptom
from muster_criteria.cluster.fabric.judging.found import FaultyPart
from muster_criteria.cluster.fabric.topology import Topology


def goes_over(topology: Topology, found: Evidence, pair: tuple[int, int], rail: int, *, together: bool = False) -> bool:
    """Whether this pair's cell of a rail, alone or ``together`` with all others, goes over a part. No cell goes over
    congestion, which is no part, and no cell alone over what is low only with all rails at once."""
    part = found.part
    if part.kind is PartKind.CONGESTION or part.rail not in (-1, rail):
        return False
    if found.symptom is Symptom.TOGETHER and not together:
        return False
    if part.kind is PartKind.RAIL:
        return True
    if part.kind in OF_THE_NODE or part.kind is PartKind.SHARED:
        return not set(pair).isdisjoint(found.touches)
    if part.between_nodes:
        return set(pair) == {part.a, part.b}
    leaves = {topology.leaf_of[node] for node in pair}
    if part.kind is PartKind.PATH:
        return leaves == {part.a, part.b}
    return part.a in leaves and (part.kind is PartKind.LEAF or len(leaves) > 1)


def stops(symptom: Symptom, wrong: bool) -> bool:
    """Whether a part with this symptom may let nothing through or, for ``wrong``, may cause wrong bytes. A slow part
    does carry something, unchanged."""
    return symptom is Symptom.CORRUPTS or (symptom is Symptom.DEAD and not wrong)


def carries_nothing(found: Evidence | FaultyPart) -> bool:
    """Whether nothing goes over the part: at all, or with all rails at once."""
    return found.symptom is Symptom.DEAD or (found.symptom is Symptom.TOGETHER and found.share == 0.0)
