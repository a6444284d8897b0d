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
    """``failed``: nodes that were failed. ``named``: nodes × GPUs that a failing finding names.

    ``warned``: nodes that were not failed, but with a finding. ``minutes``: of load until a failed node
    was known to be bad (NaN: not failed, or unknown). ``retested``: nodes that were measured once more. ``suspected``:
    nodes from which nothing is estimated of healthy ones.
    """

    failed: Flags
    named: Flags
    warned: Flags
    minutes: npt.NDArray[np.float64]
    retested: Flags
    suspected: Flags

    @classmethod
    def none(cls, nodes: int) -> Verdicts:
        """Returns verdicts for so many nodes, none of them failed, for the caller to fill."""
        failed, warned, retested, suspected = (np.zeros(nodes, dtype=np.bool_) for _ in range(4))
        named, minutes = np.zeros((nodes, GPUS), dtype=np.bool_), np.full(nodes, np.nan)
        return cls(failed, named, warned, minutes, retested, suspected)

    @classmethod
    def plain(cls, named: Flags) -> Verdicts:
        """Of a judge that fails a node for any named GPU, never warns and never asks for a retest."""
        return dataclasses.replace(cls.none(len(named)), failed=np.asarray(named.any(axis=1)), named=named)


def shows(readings: Readings) -> Flags:
    """Nodes × GPUs that do not answer, or have a count, width or time that no healthy GPU has."""
    found = np.zeros(next(iter(readings.values())).shape, dtype=np.bool_)
    for metric in DISCRETE:
        found |= readings[metric.key] != metric.healthy  # NaN differs from everything
    return found
