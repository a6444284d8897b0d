"""What a judge says of trials, in the one form in which Muster and the baselines are counted."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tests.bench.accuracy.metrics import DISCRETE
from tests.bench.accuracy.physics import Readings

Flags = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """``failed``: nodes that were failed. ``accused``: nodes × GPUs that a failing finding names.

    ``warned``: nodes that were not failed, but about which something was said. ``minutes``: of load until a failed node
    was known to be bad (NaN: not failed, or not told). ``retested``: nodes that were measured once more.
    """

    failed: Flags
    accused: Flags
    warned: Flags
    minutes: npt.NDArray[np.float64]
    retested: Flags


def plain(accused: Flags) -> Verdicts:
    """Of a judge that fails a node for any accused GPU, never warns and never asks for a retest."""
    failed = accused.any(axis=1)
    none = np.zeros_like(failed)
    return Verdicts(failed, accused, none, np.full(len(failed), np.nan), none)


def shows(readings: Readings) -> Flags:
    """Nodes × GPUs that do not answer, or have a count, width or time that no healthy GPU has."""
    found = np.zeros(next(iter(readings.values())).shape, dtype=np.bool_)
    for metric in DISCRETE:
        found |= readings[metric.key] != metric.healthy  # NaN differs from everything
    return found
