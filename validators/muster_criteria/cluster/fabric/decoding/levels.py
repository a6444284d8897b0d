"""From rates to shares: each cell over the median of its (round, rail), and what counts as low.

There is no absolute reference, so each cell is compared with the others of its round and rail, of which there must be
at least three. Pairs within leaves and pairs between leaves are each compared with their own kind, since uplinks may be
slower by design. With fewer than three of its kind, a pair between leaves is good if it is as fast as those within, a
pair within a leaf is low if it is slower than those between, and otherwise nothing is said. A cell that carried
nothing, or wrong bytes, is always low. If a rail is lower than the others in a round, its cells are compared with the
other rails: otherwise a fault that most of them share would hide itself. ``Level.lower`` marks rails of which all cells
are lower.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import numpy as np

from muster_criteria.cluster.fabric.rounds import Figures, Flags, RoundResult
from muster_criteria.cluster.fabric.topology import Indices, Topology

OTHERS_MIN = 3
"""Fewest other cells of the same round and rail to compare with, as for a block's members."""

EFFECT_MIN = 0.10
"""The least loss that must not be overlooked, as a share of the usual rate: half of the 0.90 limit for
bandwidth (docs/science.md#performance-limits) would be within the spread of healthy ports."""

WHOLE = 0.9
"""Share of a rail's cells that are equally slow if the rail as a whole is slower than the others. So many pairs are
slow when two thirds of the nodes are at fault, and then most of them share a cause."""

NOISE_MIN = 0.005
_CERTAIN = 3.6
"""Standard deviations from a part with the least effect up to the threshold: 1 of 6,000 of its cells lies above it."""
_APART = 1.75
"""Standard deviations from the median of healthy cells down to the threshold: 4 % lie below, and are measured again."""


NOISE_MAX = 2 * EFFECT_MIN / _APART
"""Standard deviation above which a round cannot show what it is for: a part that lost twice the least effect would lie
above the threshold more often than not."""


@dataclasses.dataclass(frozen=True, eq=False)
class Level:
    """One round in shares of the usual rate. ``a``, ``b``: nodes of each pair; ``chosen``: the pair is no reference.
    ``share``, ``low``, ``good``: shape (pairs, rails), NaN or both false if nothing can be said. ``lower``: almost all
    cells of the rail are equally slower than the other rails; ``of_others``: its usual rate as a share of theirs;
    ``usual``: that rate, NaN with too few cells; shape (rails,). ``rate``: of each cell, shape (pairs, rails), in the
    unit of ``usual``; comparable between rounds with equal ``variants``. ``bare``: measured but compared with nothing,
    so it is only known whether something arrived, shape (pairs, rails)."""

    number: int
    confirms: bool
    a: Indices
    b: Indices
    chosen: Flags
    share: Figures
    low: Flags
    good: Flags
    wrong: Flags
    crossed: Figures | None
    threshold: float
    noise: float
    unjudged: int
    lower: Flags
    of_others: Figures
    usual: Figures
    rate: Figures
    variants: int
    bare: Flags


def level(topology: Topology, result: RoundResult, by_itself: Sequence[int] = ()) -> Level:
    """The shares of one round.

    ``by_itself``: rails that are slower than the others as a whole, whose cells are compared with each other only.
    """
    pairs = np.array(result.round.pairs, dtype=np.intp).reshape(-1, 2)
    a, b = pairs[:, 0], pairs[:, 1]
    chosen = np.arange(len(pairs)) < len(pairs) - result.round.references
    kinds = _Kinds(topology.leaf_array[a] != topology.leaf_array[b], chosen, by_itself)
    best = np.fmax.reduce(result.alone, axis=2)
    usual = kinds.usual(np.where(result.wrong, np.nan, best))
    share, borrowed = kinds.shares(best, usual)
    bare: Flags = np.isnan(share) & ~np.isnan(best)
    # A wrong payload is no transfer at all, however fast.
    share = np.where(result.wrong | (best == 0.0), 0.0, share)
    noise = _noise(share[~borrowed])
    threshold = min(1.0 - EFFECT_MIN + _CERTAIN * noise * (1.0 - EFFECT_MIN), 1.0 - _APART * noise)
    # However noisy a round is, a cell over which nothing could be sent, or wrong bytes, is low.
    threshold = max(threshold, sys.float_info.min)
    between = kinds.between[:, None]
    with np.errstate(invalid="ignore"):
        low, good = share < threshold, share >= threshold
    low &= ~(borrowed & between) | (share == 0.0)
    good &= ~borrowed | between
    unjudged = int(((np.isnan(share) | (borrowed & ~low & ~good)) & ~np.isnan(best)).sum())
    return Level(
        result.round.number, result.round.kind == "confirm", a, b, chosen, share, low, good, result.wrong,
        kinds.own_shares(result.crossed), threshold, noise, unjudged, *_rails(usual, noise), best,
        result.round.variants, bare,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class _Usual:
    """The usual rate of each rail among pairs of one kind. ``pool``: the cells that set it, ``counted`` of which were
    measured, with the median ``own``; ``rate``: what cells are compared with: the other rails' rate if the rail is
    ``below`` it, else ``own``; ``of_others``: as in ``Level``."""

    pool: Figures
    counted: Indices
    own: Figures
    rate: Figures
    below: Flags
    of_others: Figures

    def lower(self, noise: float) -> Flags:
        """As in ``Level``. Cells that are faster than the rest by more than noise show that the rail can do more."""
        spread = max(EFFECT_MIN / 2, _CERTAIN * min(noise, EFFECT_MIN))
        fast = _sorted_at(self.pool, self.counted, (WHOLE * self.counted).astype(np.intp))
        with np.errstate(invalid="ignore"):
            found: Flags = self.below & (fast <= (1.0 + spread) * self.own) & (self.counted > OTHERS_MIN)
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Kinds:
    """Which pairs lie ``between`` leaves, the others within one, and which are ``chosen`` and so are no references."""

    between: Flags
    chosen: Flags
    by_itself: Sequence[int]

    @property
    def setting(self) -> Flags:
        """The pairs that set what is usual: the references, where there are enough of them."""
        few = (~self.chosen).sum() < OTHERS_MIN
        return np.ones_like(self.chosen) if few else ~self.chosen

    def usual(self, clean: Figures) -> tuple[_Usual, _Usual]:
        """What is usual within leaves, and between them. ``clean``: cells without what must not set the median."""
        kinds = (~self.between, self.between)
        within, between = (_usual(clean[self.setting & rows], self.by_itself) for rows in kinds)
        return within, between

    def shares(self, figures: Figures, usual: tuple[_Usual, _Usual]) -> tuple[Figures, Flags]:
        """(shares, NaN with too few others; which of them are shares of the other kind's usual rate)."""
        share, borrowed = np.full(figures.shape, np.nan), np.zeros(figures.shape, dtype=bool)
        within, between = usual
        for rows, own, other in ((~self.between, within, between), (self.between, between, within)):
            in_pool = self.setting[rows, None] & ~np.isnan(figures[rows])
            few = own.counted[None, :] - in_pool < OTHERS_MIN
            borrowed[rows] = few & (other.counted >= OTHERS_MIN)[None, :]
            rate = np.where(borrowed[rows], other.rate, np.where(few, np.nan, own.rate))
            share[rows] = figures[rows] / np.where(rate > 0.0, rate, np.nan)
        return share, borrowed

    def own_shares(self, figures: Figures | None) -> Figures | None:
        """Shares of the own kind's usual rate only."""
        if figures is None:
            return None
        share, borrowed = self.shares(figures, self.usual(figures))
        return np.where(borrowed, np.nan, share)


def _rails(usual: tuple[_Usual, _Usual], noise: float) -> tuple[Flags, Figures, Figures]:
    """``lower``, ``of_others`` and ``usual`` of ``Level``. A rail is lower only if no kind of pair shows otherwise."""
    within, between = usual
    lower = [each.lower(noise) | (each.counted <= OTHERS_MIN) for each in usual]
    judged = np.maximum(within.counted, between.counted) > OTHERS_MIN
    most = within.counted >= between.counted
    own = np.where(judged, np.where(most, within.own, between.own), np.nan)
    return lower[0] & lower[1] & judged, np.where(most, within.of_others, between.of_others), own


def _usual(pool: Figures, by_itself: Sequence[int]) -> _Usual:
    counted = (~np.isnan(pool)).sum(axis=0)
    own = _sorted_at(pool, counted, counted // 2)
    over_rails = _sorted_at(own[:, None], (~np.isnan(own)).sum(keepdims=True), (~np.isnan(own)).sum(keepdims=True) // 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        of_others = own / np.where(over_rails > 0.0, over_rails, np.nan)
        below = of_others < 1.0 - EFFECT_MIN / 2
        rate = np.where(below, over_rails, own)
    for rail in by_itself:
        # Nothing can be compared with a rail that carries nothing.
        rate[rail] = own[rail] if own[rail] > 0.0 else rate[rail]
    return _Usual(pool, counted, own, rate, below, of_others)


def _sorted_at(columns: Figures, counted: Indices, place: Indices) -> Figures:
    """The value at ``place`` of each column, sorted without NaN. Half of the count gives the median, and the higher of
    the two for an even count, since half may be at fault."""
    if not len(columns):
        return np.full(columns.shape[1], np.nan)
    order = np.sort(columns, axis=0)  # NaN last
    at = np.clip(place, 0, np.maximum(counted - 1, 0))
    return np.where(counted > 0, order[at, np.arange(columns.shape[1])], np.nan)


def _noise(share: Figures) -> float:
    """The standard deviation of healthy cells, from the half above the median: faults and hot spots only lower."""
    above = share[share >= 1.0] - 1.0
    if not above.size:
        return NOISE_MIN
    return max(NOISE_MIN, float(np.quantile(above, 0.6827)))
