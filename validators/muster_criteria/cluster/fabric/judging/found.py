"""What the rounds of a block found, in names, for records and reports: parts at fault, and the matrix of each rail."""

from __future__ import annotations

import dataclasses

from muster_criteria.cluster.fabric.decoding.parts import PartKind, Symptom
from muster_criteria.words import against, listed


@dataclasses.dataclass(frozen=True)
class FaultyPart:
    """One part that the rounds hold something against, in names.

    ``node``: whose part it is, "" where it is the fabric's. ``share`` of the usual rate; ``rounds`` in which it was
    low, with ``partners``; ``touches``: nodes whose traffic goes over it. ``confirmed``: low again with partners
    chosen for it. ``least``: the share that cells have to reach, in the strictest of these rounds.
    """

    kind: PartKind
    symptom: Symptom
    where: str
    rail: str
    node: str
    share: float
    rounds: tuple[int, ...]
    partners: tuple[str, ...]
    touches: tuple[str, ...]
    confirmed: bool
    least: float = 1.0

    @property
    def title(self) -> str:
        """The part in words: "uplinks of leaf-2, rail ib0"."""
        kinds = {
            PartKind.NODE: "node", PartKind.GPU: "GPU of", PartKind.NIC: "NIC, cable or port of",
            PartKind.LEAF: "leaf switch", PartKind.UPLINK: "uplinks of", PartKind.PATH: "path",
            PartKind.RAIL: "network of", PartKind.SHARED: "a shared switch, or a port each, of",
            PartKind.CONGESTION: "congestion or routing at",
        }  # fmt: skip
        return f"{kinds[self.kind]} {self.where}{f', rail {self.rail}' if self.rail else ''}"

    @property
    def percent(self) -> tuple[str, str]:
        """``share`` and ``least`` in words."""
        return against(100 * self.share, 100 * self.least, "%", 2)

    @property
    def observed(self) -> str:
        """What it did: "34 % of the usual rate in rounds 1, 4 and 5, with n2, n5 and n7"."""
        seen = {
            Symptom.SLOW: f"{self.percent[0]} of the usual rate", Symptom.DEAD: "nothing could be sent",
            Symptom.CORRUPTS: "wrong bytes arrived", Symptom.SILENT: "no result came back",
            Symptom.TOGETHER: f"{self.percent[0]} of the usual rate with all rails at once",
        }[self.symptom]  # fmt: skip
        numbers = listed([str(number) for number in self.rounds], most=8)
        partners = listed(list(dict.fromkeys(self.partners)), most=6)
        with_whom = f", with {partners}" if partners else ""
        return f"{seen} in {'round' if len(self.rounds) == 1 else 'rounds'} {numbers}{with_whom}"


@dataclasses.dataclass(frozen=True)
class FabricJudgement:
    """``parts``: at fault or suspected, named ones first. ``notes``: what was not covered, or could not be judged.

    ``judged``: (node, rail) with at least one cell that was compared with others or with a floor. ``without_rdma``:
    (node, rail) with a floor for RDMA that no round measured by RDMA. ``noisy``: why no comparison counts, "" if they
    do.
    """

    parts: tuple[FaultyPart, ...] = ()
    notes: tuple[str, ...] = ()
    judged: frozenset[tuple[str, str]] = frozenset()
    noisy: str = ""
    without_rdma: frozenset[tuple[str, str]] = frozenset()


@dataclasses.dataclass(frozen=True)
class MatrixCell:
    """One rail from one node to another: Gb/s, its share of the median of (round, rail), and whether bytes were wrong.

    Of several rounds the worst. ``delay_us``: median round trip of 64 bytes, the same both ways; None: not measured.
    """

    sender: str
    receiver: str
    rate: float
    share: float
    wrong: bool = False
    delay_us: float | None = None


@dataclasses.dataclass(frozen=True)
class RailMatrix:
    """One rail alone, or for "" the sum of all at once. ``nodes`` are in order of leaves: a leaf's own traffic is a
    square."""

    rail: str
    nodes: tuple[str, ...]
    cells: tuple[MatrixCell, ...]

    @property
    def title(self) -> str:
        """What it shows, in words."""
        return f"rail {self.rail}" if self.rail else "all rails at once"


@dataclasses.dataclass(frozen=True)
class Fabric:
    """What a report shows of a block's rounds: parts, what was not covered, and a matrix for each rail.

    ``rounds``: their number. ``complete``: whether ``parts`` holds all that were found, including other nodes' parts.
    """

    rounds: int
    parts: tuple[FaultyPart, ...]
    notes: tuple[str, ...]
    matrices: tuple[RailMatrix, ...]
    complete: bool = True

    @property
    def headline(self) -> str:
        """How many rounds, and what they found that is not among ``parts``."""
        made = f"{self.rounds} round{'' if self.rounds == 1 else 's'} of pairs"
        if not self.complete:
            return f"{made}. Parts of other nodes are not shown."
        return f"{made}." if self.parts else f"{made}: no part was found at fault."
