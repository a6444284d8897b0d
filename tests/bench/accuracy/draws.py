"""Random spreads of the generator: heavy tails, skew, and the noise that is left of a median of noisy blocks."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Array = npt.NDArray[np.float64]
Shape = tuple[int, ...]

TAIL = 4.0
"""Degrees of freedom of everything that has heavy tails: Student-t(4)."""

BLOCKS = 5
"""Timed blocks behind a figure, at the least: the rate probes take the median of five or more."""


def student(rng: np.random.Generator, sigma: float, shape: Shape) -> Array:
    """Student-t(4) with standard deviation ``sigma``: one draw in 200 lies beyond 4 sigma, Gaussian one in 16,000."""
    return np.asarray(rng.standard_t(TAIL, shape) * (sigma / np.sqrt(2.0)))


def skewed(rng: np.random.Generator, sigma: float, shape: Shape) -> Array:
    """Log-normal with mean 1 and relative spread ``sigma``: the long tail is upwards."""
    return np.asarray(np.exp(sigma * rng.standard_normal(shape) - 0.5 * sigma**2))


def run_noise(rng: np.random.Generator, sigma: float, shape: Shape) -> Array:
    """Noise of a figure that is the median of five blocks, each of them Student-t(4); standard deviation ``sigma``.

    The median of five is the quantile function at a Beta(3, 3) draw, so no block needs to be drawn.
    """
    middle = (BLOCKS + 1) / 2
    return np.asarray(stdtrit(TAIL, rng.beta(middle, middle, shape)) * (sigma / _median_sigma()))


@functools.cache
def _median_sigma() -> float:
    """Standard deviation of the median of five Student-t(4) draws, by the midpoint rule over Beta(3, 3)."""
    p = (np.arange(100_000) + 0.5) / 100_000
    weight = (p * (1.0 - p)) ** ((BLOCKS - 1) / 2)
    return float(np.sqrt(np.sum(weight * stdtrit(TAIL, p) ** 2) / np.sum(weight)))
