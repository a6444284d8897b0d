"""From rates to shares: each cell over the median of its (round, rail), and what counts as low.

Nothing absolute is known of a cell, so it is compared with the others of its round and rail, of which there must be at
least three. Where a whole rail is lower than the other rails in a round, they are what it is compared with: otherwise
a fault that all its cells share would hide itself.
"""

from __future__ import annotations

import dataclasses
import sys

import numpy as np

from muster_criteria.cluster.fabric.rounds import Figures, Flags, RoundResult
from muster_criteria.cluster.fabric.topology import Indices

OTHERS_MIN = 3
"""Fewest other cells of the same round and rail to compare with, as for a block's members."""

EFFECT_MIN = 0.10
"""The least loss that is looked for: half of the 0.90 limit for bandwidth (docs/science.md#performance-limits) would be
within the spread of healthy ports."""

NOISE_MIN = 0.005
_CERTAIN = 3.6
"""Standard deviations by which a part with the least effect stays below the threshold: 1 of 6,000 cells does not."""
_APART = 1.75
"""And by which a healthy cell may lie below its median before it is low: 4 % of cells do, and are measured again."""


@dataclasses.dataclass(frozen=True, eq=False)
class Level:
    """One round in shares of the usual. ``share``, ``low``, ``good``: shape (pairs, rails), NaN or both false where
    nothing can be said; ``a``, ``b``: nodes of each pair."""

    number: int
    confirms: bool
    a: Indices
    b: Indices
    share: Figures
    low: Flags
    good: Flags
    wrong: Flags
    crossed: Figures | None
    together: Figures | None
    threshold: float
    noise: float
    unjudged: int
    silent: frozenset[int]


def level(result: RoundResult, effect: float = EFFECT_MIN) -> Level:
    """The shares of one round. ``effect``: the least loss that must not be overlooked, as a share."""
    best = np.fmax.reduce(result.alone, axis=2)
    clean = np.where(result.wrong, np.nan, best)
    share, unjudged = _shares(clean, best, result.round.references, effect)
    # A wrong payload is no transfer at all, however fast.
    share = np.where(result.wrong, 0.0, share)
    noise = _noise(share)
    threshold = min(1.0 - effect + _CERTAIN * noise * (1.0 - effect), 1.0 - _APART * noise)
    # However noisy a round is, a cell over which nothing could be sent, or wrong bytes, is low.
    threshold = max(threshold, sys.float_info.min)
    pairs = np.array(result.round.pairs, dtype=np.intp).reshape(-1, 2)
    with np.errstate(invalid="ignore"):
        low, good = share < threshold, share >= threshold
    return Level(
        result.round.number, result.round.kind == "confirm", pairs[:, 0], pairs[:, 1], share, low, good, result.wrong,
        _share(result.crossed, result, effect), _share(result.together, result, effect), threshold, noise, unjudged,
        result.silent,
    )  # fmt: skip


def _share(figures: Figures | None, result: RoundResult, effect: float) -> Figures | None:
    return None if figures is None else _shares(figures, figures, result.round.references, effect)[0]


def _shares(clean: Figures, best: Figures, references: int, effect: float) -> tuple[Figures, int]:
    """Shares, and how many cells have too few others. ``clean``: without what must not set the median."""
    pool = clean[len(clean) - references :] if references >= OTHERS_MIN else clean
    counted = (~np.isnan(pool)).sum(axis=0)
    usual = _upper_median(pool, counted)
    over_rails = _upper_median(usual[:, None], np.array([(~np.isnan(usual)).sum()]))[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        usual = np.where(usual < (1.0 - effect / 2) * over_rails, over_rails, usual)
        share = best / np.where(usual > 0.0, usual, np.nan)
    in_pool = np.zeros(best.shape, dtype=bool)
    in_pool[len(best) - len(pool) :] = ~np.isnan(pool)
    few = (counted[None, :] - in_pool) < OTHERS_MIN
    unjudged = int((few & ~np.isnan(best)).sum())
    return np.where(few, np.nan, share), unjudged


def _upper_median(columns: Figures, counted: Indices) -> Figures:
    """The median of each column without NaN, the higher of the two for an even count: half may be at fault."""
    if not len(columns):
        return np.full(columns.shape[1], np.nan)
    order = np.sort(columns, axis=0)  # NaN last
    at = np.minimum(counted // 2, len(columns) - 1)
    return np.where(counted > 0, order[at, np.arange(columns.shape[1])], np.nan)


def _noise(share: Figures) -> float:
    """The standard deviation of healthy cells, from the half above the median: faults and hot spots only lower."""
    above = share[share >= 1.0] - 1.0
    if not above.size:
        return NOISE_MIN
    return max(NOISE_MIN, float(np.quantile(above, 0.6827)))
