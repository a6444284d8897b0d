"""Tails: how far healthy parts stray, from an empirical sample and a prediction beyond it.

Few samples reach one in a million, so beyond the data a generalised Pareto tail is used (peaks over threshold: Pickands
1975; Balkema and de Haan 1974). No one fit of it is believed. What is tabulated is the predictive tail: the distance t
at which the chance of more than t, averaged over all tails by their likelihood, is the probability asked for. So a
small sample is given a long tail by its own uncertainty, and a large one is given the tail that it shows.

Shapes between ``SHAPE_MIN`` and ``SHAPE_MAX`` are thought equally likely beforehand. The least of them still has an
end, but one far beyond a Gaussian sample's largest value; from the other end, 0.8 is much heavier than the Student-t(4)
(0.25) of the benchmark. With fewer than ``SAMPLE_MIN`` values there is no tail, hence no conviction.

A fleet's sample holds faulty parts too: at most 0.3 % of the values at real prevalence (2 % of nodes, one device each).
So a first tail is fitted to what lies below those, and values that it would give a chance of less than one in fifty to
occur even once are left out of the second.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

SAMPLE_MIN = 200
PROBABILITIES: Numbers = np.array(
    [0.5, 0.3, 0.16, 0.1, 0.05, 0.02, 0.01, *(m * 10.0**-e for e in range(3, 11) for m in (5.0, 2.0, 1.0))]
)
"""Where tails are tabulated; between them, thresholds are interpolated over the logarithm."""
GAUSSIAN: Numbers = np.array([NormalDist().inv_cdf(1.0 - p) for p in PROBABILITIES])

CAUTION = 0.6
"""Share of a probability that is taken for it where the sample is expected to show less than one such value.

What is allowed there is an upper bound, and a tail is an estimate: of Student-t(4) samples of 8,000, 1.2 times as many
would lie beyond the predicted distance of 1e-5 as were asked for.
"""
SHAPE_MIN, SHAPE_MAX = -0.1, 0.8

_SUSPECT = 0.003
_UNLIKELY = 0.02
_WINDOW = 0.03
"""Share of the values that a tail is fitted to.

Where noise with a short tail lies over a true spread with a long one, the long one shows only far out. Of the milder of
two readings with 0.3 % noise over Student-t(4) of 0.2 %, by samples of 40,000, 3.6 times as many lie beyond the
predicted distance of 4e-6 as were asked for where a twentieth of the values is fitted to, 1.8 times with this, and 1.2
times with a fiftieth, whose predictions differ more from fleet to fleet. Other tails are predicted as well by either.
"""
_EXCESSES_MIN = 100
_POINTS = 400
_SHAPES: Numbers = np.round(np.arange(SHAPE_MIN, SHAPE_MAX + 0.01, 0.05), 2)
_SCALES: Numbers = np.geomspace(0.35, 2.2, 48)
"""In means of the excesses."""
_DISTANCES: Numbers = np.geomspace(1e-3, 1e8, 800)
"""In means of the excesses, up to what the heaviest shape reaches at the rarest probability."""


def tail_of(sample: Numbers) -> Numbers | None:
    """What healthy parts exceed with each of ``PROBABILITIES``; None where the sample is too small to say.

    ``sample``: adverse distances, positive is worse, in any unit; values that are not finite are left out.
    """
    ordered = np.sort(sample[np.isfinite(sample)])[::-1]
    if len(ordered) < SAMPLE_MIN:
        return None
    ordered = ordered[_doubtful(ordered) :]
    above = _window(len(ordered))
    start = ordered[above]
    table = np.quantile(ordered, 1.0 - PROBABILITIES)
    if ordered[0] > start:  # otherwise more ties than spread: nothing to extrapolate from but the largest value itself
        beyond = above / len(ordered) > PROBABILITIES
        shown = PROBABILITIES[beyond] * len(ordered)
        share = np.where(shown < 1.0, CAUTION, 1.0) * shown / above
        table[beyond] = start + _Fits.of(ordered[:above] - start).exceeded_by(share)
    return np.maximum.accumulate(table)


def threshold(tail: Numbers, probability: float) -> float:
    """The distance that healthy parts exceed with this probability. ``tail``: of ``tail_of``."""
    at = -np.log(probability)
    return float(np.interp(at, -np.log(PROBABILITIES), tail))


def gaussian_score(tail: Numbers, distance: Numbers) -> Numbers:
    """The distance a Gaussian sample would show where this one shows ``distance``: equal probabilities, in σ."""
    steps = np.arange(len(tail)) * 1e-9  # np.interp asks for increasing positions; ties become next to equal
    return np.interp(distance, tail + steps, GAUSSIAN)


def _window(size: int) -> int:
    """How many of the largest values a tail is fitted to."""
    return min(max(_EXCESSES_MIN, math.ceil(_WINDOW * size)), size // 4)


def _doubtful(ordered: Numbers) -> int:
    """How many of the largest values cannot be those of healthy parts; at most ``_SUSPECT`` of all are left out."""
    suspect = math.ceil(_SUSPECT * len(ordered)) + 1
    above = suspect + _window(len(ordered))
    start, end = ordered[above], ordered[suspect]
    if end <= start:
        return 0
    fits = _Fits.of(ordered[suspect:above] - start, below=float(end - start))
    limit = start + fits.exceeded_by(np.array([_UNLIKELY / above]))[0]
    return int(np.sum(ordered[:suspect] > limit))


@dataclasses.dataclass(frozen=True, eq=False)
class _Fits:
    """How likely each of the tails of ``_grid`` is by some excesses (``unit``: their mean)."""

    likely: Numbers
    unit: float

    @classmethod
    def of(cls, excesses: Numbers, *, below: float = math.inf) -> _Fits:
        """``excesses``: in falling order. ``below``: only those below this were told, and not how many more there are.

        Many excesses are represented by some, evenly chosen, each with the weight of those that it stands for.
        """
        unit = float(excesses.mean())
        chosen = np.linspace(0, len(excesses) - 1, min(_POINTS, len(excesses))).round().astype(np.intp)
        points = excesses[chosen] / unit
        log_density = np.concatenate([_log_density(each, points) for each in _SHAPES])
        if math.isfinite(below):
            told = 1.0 - _survival(*_grid(), np.array([below / unit]))[:, 0]
            log_density -= np.log(told)
        likely = np.exp(len(excesses) * (log_density - log_density.max()))
        return cls(likely / likely.sum(), unit)

    def exceeded_by(self, share: Numbers) -> Numbers:
        """The excess that so small a ``share`` of the excesses goes beyond, predicted by all tails together."""
        survival = self.likely @ _survival_of_grid()
        rarity = -np.log(np.maximum(survival, np.finfo(np.float64).tiny))
        return np.asarray(self.unit * np.exp(np.interp(-np.log(share), rarity, np.log(_DISTANCES))))


def _log_density(shape: float, points: Numbers) -> Numbers:
    """Mean logarithm of the density at these points by each of ``_SCALES``; −∞ where one lies beyond the tail's end."""
    relative = points / _SCALES[:, None]
    if shape == 0.0:
        return np.asarray(-np.log(_SCALES) - relative.mean(axis=1))
    inside = 1.0 + shape * relative
    with np.errstate(divide="ignore", invalid="ignore"):
        density = -np.log(_SCALES) - (1.0 + 1.0 / shape) * np.log(np.maximum(inside, 0.0)).mean(axis=1)
    return np.where((inside > 0.0).all(axis=1), density, -np.inf)


def _grid() -> tuple[Numbers, Numbers]:
    """Shape and scale of every tail that is asked how likely it is."""
    shape, scale = np.meshgrid(_SHAPES, _SCALES, indexing="ij")
    return shape.ravel(), scale.ravel()


@functools.cache
def _survival_of_grid() -> Numbers:
    return _survival(*_grid(), _DISTANCES)


def _survival(shape: Numbers, scale: Numbers, distance: Numbers) -> Numbers:
    """The chance of an excess beyond each distance (columns) by each tail (rows)."""
    relative = distance / scale[:, None]
    exponential = shape == 0.0
    power = np.where(exponential, 1.0, shape)[:, None]
    pareto = np.maximum(1.0 + power * relative, 0.0) ** (-1.0 / power)
    return np.where(exponential[:, None], np.exp(-relative), pareto)
