"""The parts that a fabric test can name, and what it concludes about them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping


class PartKind(enum.StrEnum):
    """What is at fault. Only NODE, GPU and NIC are the node's; the others fail no node."""

    NODE = "node"
    GPU = "gpu"
    NIC = "nic"
    """NIC, cable or switch port of one rail of one node."""
    LEAF = "leaf"
    """The leaf switch of one rail: traffic within the leaf suffers too."""
    UPLINK = "uplink"
    """What leads from one rail's leaf switch to the spines."""
    PATH = "path"
    """One path of a rail between two leaves; between two nodes where leaves are not known."""
    RAIL = "rail"
    """One rail as a whole, slower than the others alike: its switches, or another design."""
    SHARED = "shared"
    """One rail, or all, of nodes whose leaves are not known: a switch that they share, or a fault of each. Of a node
    whose leaf has no other that is good: its leaf's switch or uplinks, or the node's own fault."""
    CONGESTION = "congestion"
    """Most rails of a node, good alone and slow together: congestion or routing, no part's fault."""


OF_THE_NODE = frozenset({PartKind.NODE, PartKind.GPU, PartKind.NIC})
_WIDE = frozenset({PartKind.LEAF, PartKind.UPLINK, PartKind.RAIL, PartKind.SHARED, PartKind.CONGESTION})

CONFIRMATIONS = 2
"""Different good partners with which a part must be low in rounds of confirmation."""


@dataclasses.dataclass(frozen=True, order=True)
class Part:
    """One part. ``a``: index of the node (NODE, GPU, NIC) or of the leaf; 0 for RAIL, and for SHARED without known
    leaves. ``b``: the path's other end, else -1.

    ``rail``: index of the rail, -1 for a node and for what nodes share on all rails. ``between_nodes``: the ends of the
    path are nodes.
    """

    kind: PartKind
    a: int
    b: int = -1
    rail: int = -1
    between_nodes: bool = False


class Symptom(enum.StrEnum):
    """How the part fails."""

    SLOW = "slow"
    DEAD = "dead"
    CORRUPTS = "corrupts"
    SILENT = "silent"
    """The node returned nothing."""
    TOGETHER = "together"
    """Good alone; slow, or nothing arrives, with all rails at once."""


def is_own(kind: PartKind, symptom: Symptom) -> bool:
    """Whether a confirmed part is the node's, whatever it may share with others: a GPU that is low over two NICs, or a
    part that corrupts. A switch does not corrupt unseen, since RDMA's invariant CRC goes from end to end.
    """
    return kind is PartKind.GPU or symptom is Symptom.CORRUPTS


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is held against a part: in which rounds, with whom, and the share of the usual rate that it reached.

    ``share`` is the median of its cells over those of its (round, rail); ``rounds`` are the numbers of the rounds in
    which it was low, ``partners`` node indices. ``confirmed``: in how many rounds of confirmation it was low.
    ``touches``: nodes whose traffic goes over the part, as far as they were measured over it.
    """

    part: Part
    symptom: Symptom
    share: float
    rounds: tuple[int, ...]
    partners: tuple[int, ...]
    confirmed: int = 0
    touches: tuple[int, ...] = ()

    @property
    def is_named(self) -> bool:
        """Whether it is confirmed. A wide part is low with many nodes and leaves in each round, so two rounds do."""
        wide = self.part.kind in _WIDE or self.symptom is Symptom.SILENT
        return (len(self.rounds) if wide else self.confirmed) >= CONFIRMATIONS


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What the rounds so far show.

    ``named``: confirmed parts at fault. ``suspects``: parts that another round has to confirm or clear. ``uncovered``:
    (leaf, leaf, rail) of which every measured cell is explained by another fault. ``once``: number of low cells that no
    part explains (hot spots). ``unjudged``: number of cells with fewer than three others to compare with. ``compared``:
    (node, rail) that had enough others and was good or is touched by a part. ``noise``: relative standard deviation of
    a cell in the noisiest round. ``thresholds``: by round number, the share below which a cell is low; ``together``:
    the same with all rails at once. ``not_together``: (node, rail) that was compared alone, and whose rate with all
    rails at once could not be compared.
    """

    named: tuple[Evidence, ...]
    suspects: tuple[Evidence, ...]
    uncovered: tuple[tuple[int, int, int], ...]
    once: int
    unjudged: int
    noise: float
    compared: frozenset[tuple[int, int]] = frozenset()
    thresholds: Mapping[int, float] = dataclasses.field(default_factory=dict)
    together: Mapping[int, float] = dataclasses.field(default_factory=dict)
    not_together: frozenset[tuple[int, int]] = frozenset()

    def least(self, evidence: Evidence) -> float:
        """The share that cells of a part had to reach, in the strictest of its rounds."""
        thresholds = self.together if evidence.symptom is Symptom.TOGETHER else self.thresholds
        return max(thresholds[number] for number in evidence.rounds)
