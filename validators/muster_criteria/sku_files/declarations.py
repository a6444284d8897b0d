"""What the node's probes declare: their parameters, and their metrics with units. SKU files are checked against it.

Only declarations cross here, and only for checking what people write: nothing of how a probe measures.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster_node.probe import Probe


@dataclasses.dataclass(frozen=True)
class Declared:
    """One probe's declaration. ``units`` gives, for each metric, its unit and its unit on GPUs; ``loads`` says whether
    it puts load on the machine, ``timed_s`` how many seconds of it some parameters ask for on so many devices.
    """

    probe: str
    params: frozenset[str]
    units: Mapping[str, tuple[str, str]]
    loads: bool = True
    timed_s: Callable[[Mapping[str, Any], int], float] = lambda params, devices: 0.0

    def unit(self, metric: str, kind: str) -> str:
        """The unit in which the probe reports ``metric`` on devices of ``kind``. Raises KeyError."""
        unit, gpu_unit = self.units[metric]
        return gpu_unit if kind == "gpu" else unit


def _timed_s(probe: type[Probe], params: Mapping[str, Any], devices: int) -> float:
    from muster_node.probe import resolve_params

    return probe.timed_s(resolve_params(probe, params), devices)


def declared_probes() -> dict[str, Declared]:
    """Every probe that the node side ships, by name."""
    from muster_node.agent.registry import discover

    return {
        name: Declared(
            probe=name,
            params=frozenset(probe.params),
            units={key: (metric.unit, metric.unit_on("gpu0")) for key, metric in probe.metrics.items()},
            loads=probe.loads,
            timed_s=functools.partial(_timed_s, probe),
        )
        for name, probe in discover().probes.items()
    }
