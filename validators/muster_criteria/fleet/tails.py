"""Tails: how far healthy parts stray, from an empirical sample and a conservative extrapolation beyond it.

Few samples reach one in a million, so beyond the data a generalised Pareto tail is used (peaks over threshold: Pickands
1975; Balkema and de Haan 1974). Conservative in three ways: its shape is never taken below 0, so a Gaussian sample is
given an exponential tail; of all tails that the sample does not contradict (likelihood, one-sided 97.5 %) the longest
is used at every probability; and with fewer than ``SAMPLE_MIN`` values there is no tail, hence no conviction.

A fleet's sample holds faulty parts too: at most 0.3 % of the values at real prevalence (2 % of nodes, one device each).
So a first tail is fitted to what lies below those, and values that it would give a chance of less than one in ten to
occur even once are left out of the second.
"""

from __future__ import annotations

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

_SUSPECT = 0.003
_UNLIKELY = 0.1
_WINDOW = 0.02
_EXCESSES_MIN = 100
_POINTS = 200
_SHAPES: Numbers = np.arange(0.0, 0.701, 0.05)
_LIKELIHOOD_DROP = NormalDist().inv_cdf(0.975) ** 2 / 2.0


def tail_of(sample: Numbers) -> Numbers | None:
    """What healthy parts exceed with each of ``PROBABILITIES``; None where the sample is too small to say.

    ``sample``: adverse distances, positive is worse, in any unit; values that are not finite are left out.
    """
    ordered = np.sort(sample[np.isfinite(sample)])[::-1]
    if len(ordered) < SAMPLE_MIN:
        return None
    ordered = ordered[_doubtful(ordered) :]
    above = min(max(_EXCESSES_MIN, math.ceil(_WINDOW * len(ordered))), len(ordered) // 5)
    start = ordered[above]
    table = np.quantile(ordered, 1.0 - PROBABILITIES)
    if ordered[0] > start:  # otherwise more ties than spread: nothing to extrapolate from but the largest value itself
        beyond = above / len(ordered) > PROBABILITIES
        odds = above / len(ordered) / PROBABILITIES[beyond]
        fits = _fits(ordered[:above] - start, drop=_LIKELIHOOD_DROP)
        table[beyond] = start + np.max([_excess(shape, scale, odds) for shape, scale in fits], axis=0)
    return np.maximum.accumulate(table)


def _doubtful(ordered: Numbers) -> int:
    """How many of the largest values cannot be those of healthy parts; at most ``_SUSPECT`` of all are left out."""
    size = len(ordered)
    suspect = math.ceil(_SUSPECT * size) + 1
    above = min(suspect + max(_EXCESSES_MIN, math.ceil(_WINDOW * size)), size // 5)
    start, end = ordered[above], ordered[suspect]
    if end <= start:
        return 0
    [(shape, scale)] = _fits(ordered[suspect:above] - start, drop=0.0, below=float(end - start))
    limit = start + _excess(shape, scale, np.array([above / _UNLIKELY]))[0]
    return int(np.sum(ordered[:suspect] > limit))


def threshold(tail: Numbers, probability: float) -> float:
    """The distance that healthy parts exceed with this probability. ``tail``: of ``tail_of``."""
    at = -np.log(probability)
    return float(np.interp(at, -np.log(PROBABILITIES), tail))


def gaussian_score(tail: Numbers, distance: Numbers) -> Numbers:
    """The distance a Gaussian sample would show where this one shows ``distance``: equal probabilities, in σ."""
    steps = np.arange(len(tail)) * 1e-9  # np.interp asks for increasing positions; ties become next to equal
    return np.interp(distance, tail + steps, GAUSSIAN)


def _excess(shape: float, scale: float, odds: Numbers) -> Numbers:
    return scale * (np.log(odds) if shape == 0.0 else (odds**shape - 1.0) / shape)


def _fits(excesses: Numbers, *, drop: float, below: float = math.inf) -> list[tuple[float, float]]:
    """The (shape, scale) of tails whose likelihood lies within ``drop`` of the best one's.

    ``excesses``: in falling order. ``below``: only excesses below this were told, and nothing is said of how many more.
    """
    points = excesses[np.linspace(0, len(excesses) - 1, min(_POINTS, len(excesses))).round().astype(np.intp)]
    scales = float(excesses.mean()) * np.geomspace(0.3, 3.0, 50)
    relative = points / scales[:, None]
    found: list[tuple[float, float, float]] = []
    for shape in _SHAPES:
        hazard = relative if shape == 0.0 else np.log1p(shape * relative) / shape
        likely = np.mean(-np.log(scales)[:, None] - (1.0 + shape) * hazard, axis=1)
        if math.isfinite(below):
            last = below / scales
            survival = np.exp(-last) if shape == 0.0 else (1.0 + shape * last) ** (-1.0 / shape)
            likely = likely - np.log1p(-survival)
        found += [
            (len(excesses) * float(each), float(shape), float(scale))
            for each, scale in zip(likely, scales, strict=True)
        ]
    best = max(likely for likely, _, _ in found)
    return [(shape, scale) for likely, shape, scale in found if likely >= best - drop]
