"""What the node's probes declare: their parameters, and their metrics with units. SKU files are checked against it.

Only declarations cross here, and only for checking what people write: nothing of how a probe measures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Declared:
    """One probe's declaration. ``units`` gives, for each metric, its unit and its unit on GPUs; ``loads`` says whether
    it puts load on the machine.
    """

    probe: str
    params: frozenset[str]
    units: Mapping[str, tuple[str, str]]
    loads: bool = True

    def unit(self, metric: str, kind: str) -> str:
        """The unit in which the probe reports ``metric`` on devices of ``kind``. Raises KeyError."""
        unit, gpu_unit = self.units[metric]
        return gpu_unit if kind == "gpu" else unit


def declared_probes() -> dict[str, Declared]:
    """Every probe that the node side ships, by name."""
    from muster_node.registry import discover

    return {
        name: Declared(
            probe=name,
            params=frozenset(probe.params),
            units={key: (metric.unit, metric.unit_on("gpu0")) for key, metric in probe.metrics.items()},
            loads=probe.loads,
        )
        for name, probe in discover().probes.items()
    }
