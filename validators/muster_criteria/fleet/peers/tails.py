"""Tails: rare distances of healthy parts, from an empirical sample and a prediction beyond it.

Few samples reach one in a million, so beyond the data a generalised Pareto tail is used (peaks over threshold: Pickands
1975; Balkema and de Haan 1974). No single fit is used. Instead the predictive tail is tabulated: the distance t at
which the chance of more than t, averaged over all tails by their likelihood, is the given probability. Its own
uncertainty thus gives a small sample a long tail, while a large sample gets the tail that it shows.

Shapes lie between ``SHAPE_MIN`` and ``SHAPE_MAX``, weighted by the tails of similar metrics (see ``shapes``). The
smallest still has an end, but far beyond a Gaussian sample's largest value; the largest, 0.8, is much heavier than the
Student-t(4) (0.25) of the benchmark. With fewer than ``SAMPLE_MIN`` values there is no tail, and no device fails by it.

A fleet's sample holds faulty parts too: at most 0.3 % of the values at real prevalence (2 % of nodes, one device each).
So a first tail is fitted to the values below those, and the second fit leaves out values whose chance of occurring even
once by the first tail is less than one in fifty.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import genpareto

from muster_criteria.fleet.peers.shapes import priors

Numbers = npt.NDArray[np.float64]

SAMPLE_MIN = 200
PROBABILITIES: Numbers = np.array(
    [0.5, 0.3, 0.16, 0.1, 0.05, 0.02, 0.01, *(m * 10.0**-e for e in range(3, 11) for m in (5.0, 2.0, 1.0))]
)
"""Probabilities at which tails are tabulated; between them, thresholds are interpolated over the logarithm."""
_RARITY: Numbers = -np.log(PROBABILITIES)

CAUTION = 0.6
"""Factor by which a probability is reduced where fewer than one value of the sample is expected to be that rare.

The budget is an upper bound, and a tail is an estimate: of Student-t(4) samples of 8,000, 1.2 times as many
lie beyond the predicted distance of 1e-5 as predicted.
"""
SHAPE_MIN, SHAPE_MAX = -0.1, 0.8

_SUSPECT = 0.003
_UNLIKELY = 0.02
_WINDOW = 0.03
"""Share of the values that a tail is fitted to.

Where noise with a short tail is added to a true spread with a long tail, the long tail shows only far out. Of the
milder of two readings with 0.3 % noise over Student-t(4) of 0.2 %, by samples of 40,000 of four metrics together, 1.8
times as many lie beyond the predicted distance of 5e-6 as predicted. With half of it 1.1 times as many do, but
predictions differ by half more from fleet to fleet. Other tails are predicted as well by either.
"""
_EXCESSES_MIN = 100
_POINTS = 400
_SHAPES: Numbers = np.round(np.arange(SHAPE_MIN, SHAPE_MAX + 0.01, 0.025), 3)
_SCALES: Numbers = np.geomspace(0.35, 2.2, 48)
"""Scales that are tried, in units of the excesses' mean."""
_DISTANCES: Numbers = np.geomspace(1e-3, 1e8, 800)
"""Distances that are tabulated, in units of the excesses' mean, up to that of the heaviest shape at the rarest
probability."""


def tails_of(samples: Sequence[tuple[Numbers, float]]) -> list[Numbers | None]:
    """Distances that healthy parts exceed with each of ``PROBABILITIES``; None for a sample that is too small.

    ``samples``: of similar metrics, whose tails inform each other's shape; each with its weight (0 to 1). Distances are
    adverse if positive, in any unit; values that are not finite are left out.
    """
    fallen = [np.sort(sample[np.isfinite(sample)])[::-1] for sample, _ in samples]
    enough = [at for at, ordered in enumerate(fallen) if len(ordered) >= SAMPLE_MIN]
    found: list[Numbers | None] = [None] * len(samples)
    alone: list[Numbers | None] = [None] * len(enough)
    known = _priors([(fallen[at], samples[at][1]) for at in enough]) if len(enough) > 1 else alone
    for at, prior in zip(enough, known, strict=True):
        found[at] = _table(fallen[at], prior)
    return found


def _priors(ordered: Sequence[tuple[Numbers, float]]) -> list[Numbers | None]:
    """For each sample, the likelihood of each shape given the others; None if no other informs it."""
    fits = [(_fits(_kept(sample)), weight) for sample, weight in ordered]
    informing = [(fit.shapes(), weight) for fit, weight in fits if fit is not None]
    known = iter(priors(_SHAPES, *zip(*informing, strict=True)) if len(informing) > 1 else [None] * len(informing))
    return [None if fit is None else next(known) for fit, _ in fits]


def _table(ordered: Numbers, prior: Numbers | None) -> Numbers:
    """The tail of one sample, given a prior of its shape."""
    kept = _kept(ordered, prior)
    table = np.quantile(kept, 1.0 - PROBABILITIES)
    fits = _fits(kept, prior)
    if fits is not None:
        above = _window(len(kept))
        beyond = above / len(kept) > PROBABILITIES
        shown = PROBABILITIES[beyond] * len(kept)
        share = np.where(shown < 1.0, CAUTION, 1.0) * shown / above
        table[beyond] = kept[above] + fits.exceeded_by(share)
    return np.maximum.accumulate(table)


def _fits(kept: Numbers, prior: Numbers | None = None) -> _Fits | None:
    """The possible tails of the largest values; None if these are all equal."""
    above = _window(len(kept))
    start = kept[above]
    return _Fits.of(kept[:above] - start, prior) if kept[0] > start else None


def threshold(tail: Numbers, probability: float) -> float:
    """The distance that healthy parts exceed with this probability. ``tail``: of ``tails_of``."""
    return float(np.interp(-np.log(probability), _RARITY, tail))


def _window(size: int) -> int:
    """Returns the number of largest values that a tail is fitted to."""
    return min(max(_EXCESSES_MIN, math.ceil(_WINDOW * size)), size // 4)


def _kept(ordered: Numbers, prior: Numbers | None = None) -> Numbers:
    """The sample without its largest values that cannot come from healthy parts, at most ``_SUSPECT`` of all."""
    suspect = math.ceil(_SUSPECT * len(ordered)) + 1
    above = suspect + _window(len(ordered))
    start, end = ordered[above], ordered[suspect]
    if end <= start:
        return ordered
    fits = _Fits.of(ordered[suspect:above] - start, prior, below=float(end - start))
    limit = start + fits.exceeded_by(np.array([_UNLIKELY / above]))[0]
    return ordered[int(np.sum(ordered[:suspect] > limit)) :]


@dataclasses.dataclass(frozen=True, eq=False)
class _Fits:
    """Likelihood of each tail of ``_grid`` by some excesses (``unit``: their mean)."""

    likely: Numbers
    unit: float

    @classmethod
    def of(cls, excesses: Numbers, prior: Numbers | None = None, *, below: float = math.inf) -> _Fits:
        """``excesses``: in falling order. ``prior``: how likely each of ``_SHAPES`` is beforehand (None: all alike).
        ``below``: the sample is cut off at this excess.

        Many excesses are represented by an evenly chosen subset, each weighted by the number that it represents.
        """
        unit = float(excesses.mean())
        chosen = np.linspace(0, len(excesses) - 1, min(_POINTS, len(excesses))).round().astype(np.intp)
        points = excesses[chosen] / unit
        log_density = np.concatenate([_log_density(each, points) for each in _SHAPES])
        if math.isfinite(below):
            seen = 1.0 - _survival(np.array([below / unit]))[:, 0]
            log_density -= np.log(seen)
        likely = np.exp(len(excesses) * (log_density - log_density.max()))
        if prior is not None:
            likely *= np.repeat(prior, len(_SCALES))
        return cls(likely / likely.sum(), unit)

    def shapes(self) -> Numbers:
        """Returns the likelihood of each of ``_SHAPES``, over all scales."""
        return np.asarray(self.likely.reshape(len(_SHAPES), len(_SCALES)).sum(axis=1))

    def exceeded_by(self, share: Numbers) -> Numbers:
        """The excess that this ``share`` of the excesses exceeds, predicted by all tails together."""
        survival = self.likely @ _survival_of_grid()
        rarity = -np.log(np.maximum(survival, np.finfo(np.float64).tiny))
        return np.asarray(self.unit * np.exp(np.interp(-np.log(share), rarity, np.log(_DISTANCES))))


def _log_density(shape: float, points: Numbers) -> Numbers:
    """Mean logarithm of the density at these points by each of ``_SCALES``; −∞ where one lies beyond the tail's end.

    ``scipy.stats.genpareto.logpdf`` gives the same values in eight times the time; a fleet needs thousands of fits.
    """
    relative = points / _SCALES[:, None]
    if shape == 0.0:
        return np.asarray(-np.log(_SCALES) - relative.mean(axis=1))
    inside = 1.0 + shape * relative
    with np.errstate(divide="ignore", invalid="ignore"):
        density = -np.log(_SCALES) - (1.0 + 1.0 / shape) * np.log(np.maximum(inside, 0.0)).mean(axis=1)
    return np.where((inside > 0.0).all(axis=1), density, -np.inf)


def _grid() -> tuple[Numbers, Numbers]:
    """Shape and scale of every tail of the grid."""
    shape, scale = np.meshgrid(_SHAPES, _SCALES, indexing="ij")
    return shape.ravel(), scale.ravel()


@functools.cache
def _survival_of_grid() -> Numbers:
    return _survival(_DISTANCES)


def _survival(distance: Numbers) -> Numbers:
    """The chance of an excess beyond each distance (columns) by each tail of the grid (rows)."""
    shape, scale = _grid()
    return np.asarray(genpareto.sf(distance, shape[:, None], scale=scale[:, None]))
