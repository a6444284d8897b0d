"""A round of pairs in a block, by node names, and what each side of a pair returned."""

from __future__ import annotations

import dataclasses
import enum

from muster_criteria.measured import Measured


class Outcome(enum.StrEnum):
    """What became of one side of a pair."""

    MEASURED = "measured"
    SILENT = "silent"
    """The node returned nothing."""
    UNMEASURED = "unmeasured"
    """Through no fault of the node: the controller failed, or the scheduler took the node back."""


@dataclasses.dataclass(frozen=True)
class Side:
    """What one node returned of its pair. ``evidence``: (kind, sentence, job) of what the controller established."""

    node: str
    outcome: Outcome
    why: str = ""
    figures: tuple[Measured, ...] = ()
    evidence: tuple[tuple[str, str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class PlannedRound:
    """One round: pairs of names, and the numbers of ``muster_criteria.cluster.fabric.rounds.Round``."""

    number: int
    kind: str
    pairs: tuple[tuple[str, str], ...]
    variants: int
    references: int

    @property
    def members(self) -> tuple[str, ...]:
        """Its nodes, partners next to each other."""
        return tuple(node for pair in self.pairs for node in pair)

    def pair_of(self, node: str) -> tuple[str, str] | None:
        """The pair of a node, None where it has none."""
        return next((pair for pair in self.pairs if node in pair), None)
