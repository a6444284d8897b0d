"""A round of pair tests, and what it measured.

In a round every node is in at most one pair, and all pairs run at once.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Figures = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Kind(enum.StrEnum):
    """What the pairs of a round have in common."""

    SAME_LEAF = "same_leaf"
    OTHER_LEAF = "other_leaf"
    """Another leaf of the same pod."""
    OTHER_POD = "other_pod"
    CONFIRM = "confirm"
    """Suspects with partners that are known to be good, and pairs of good nodes to compare them with."""


@dataclasses.dataclass(frozen=True)
class Round:
    """Pairs of node indices, the lower first. ``references``: how many of the last pairs consist of good nodes and
    serve as references; 0 if all pairs are compared with each other.

    ``variants``: how often each rail is measured, each time over another flow (source port or queue pair), so that two
    flows that collide on a link once do not collide every time.
    """

    number: int
    kind: Kind
    pairs: tuple[tuple[int, int], ...]
    variants: int = 1
    references: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round measured, with one row a pair and one column a rail.

    ``alone`` is the rate of each rail by itself, shape (pairs, rails, variants): the worse of both directions, in any
    unit that is the same for all; 0 for a rail over which nothing could be sent, NaN for one that was not measured.
    ``together``: with all rails at once, the best of its flows, shape (pairs, rails), or None. ``wrong``: wrong payload
    arrived, shape (pairs, rails). ``crossed``: the GPU of this rail over the next rail's NIC, shape (pairs, rails), or
    None. ``silent``: nodes of the round that returned nothing, so that their pair is not measured. ``replaced``: nodes
    whose pair was measured with another backend than most pairs, and with which; their cells are NaN. ``host``: plain
    TCP arrived over a rail after the backend had failed there, shape (pairs, rails), or None. ``backend``: what the
    cells were measured with, "" where no node says so. ``gpus``: by (node, rail), the GPU that the node measured the
    rail with, where it says so.
    ``troubles``: by (node, rail), why nothing arrived at the node, as it says. ``fallbacks``: by node, why its pair was
    measured with TCP instead of what was asked for, as it says.
    """

    round: Round
    alone: Figures
    wrong: Flags
    together: Figures | None = None
    crossed: Figures | None = None
    silent: frozenset[int] = frozenset()
    replaced: Mapping[int, str] = dataclasses.field(default_factory=dict)
    host: Flags | None = None
    backend: str = ""
    gpus: Mapping[tuple[int, int], str] = dataclasses.field(default_factory=dict)
    troubles: Mapping[tuple[int, int], str] = dataclasses.field(default_factory=dict)
    fallbacks: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def all_at_once(self) -> RoundResult:
        """The same round with what each rail carried while all rails did, in place of what it carried alone."""
        together = np.full(self.wrong.shape, np.nan) if self.together is None else self.together
        plan = dataclasses.replace(self.round, variants=1)
        return RoundResult(plan, together[:, :, None], np.zeros_like(self.wrong))
