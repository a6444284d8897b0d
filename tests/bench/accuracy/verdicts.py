"""What a judge says of trials, in the one form in which Muster and the baselines are counted."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tests.bench.accuracy.devices import GPUS
from tests.bench.accuracy.metrics import DISCRETE
from tests.bench.accuracy.physics import Readings

Flags = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """``failed``: nodes that were failed. ``accused``: nodes × GPUs that a failing finding names.

    ``warned``: nodes that were not failed, but about which something was said. ``minutes``: of load until a failed node
    was known to be bad (NaN: not failed, or not told). ``retested``: nodes that were measured once more. ``suspected``:
    nodes from which nothing is learned of healthy ones.
    """

    failed: Flags
    accused: Flags
    warned: Flags
    minutes: npt.NDArray[np.float64]
    retested: Flags
    suspected: Flags

    @classmethod
    def none(cls, nodes: int) -> Verdicts:
        """Nothing said yet of so many nodes; the arrays are to be filled."""
        failed, warned, retested, suspected = (np.zeros(nodes, dtype=np.bool_) for _ in range(4))
        accused, minutes = np.zeros((nodes, GPUS), dtype=np.bool_), np.full(nodes, np.nan)
        return cls(failed, accused, warned, minutes, retested, suspected)

    @classmethod
    def plain(cls, accused: Flags) -> Verdicts:
        """Of a judge that fails a node for any accused GPU, never warns and never asks for a retest."""
        return dataclasses.replace(cls.none(len(accused)), failed=np.asarray(accused.any(axis=1)), accused=accused)


def shows(readings: Readings) -> Flags:
    """Nodes × GPUs that do not answer, or have a count, width or time that no healthy GPU has."""
    found = np.zeros(next(iter(readings.values())).shape, dtype=np.bool_)
    for metric in DISCRETE:
        found |= readings[metric.key] != metric.healthy  # NaN differs from everything
    return found
