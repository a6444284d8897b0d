"""The node's probes as data: parameters and metrics with units, to check SKU files against.

``validators/skus/probes.json`` is written from the node side's declarations by ``make declarations``; a test compares
the two. The criteria import nothing of the node side.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[2] / "skus" / "probes.json"


@dataclasses.dataclass(frozen=True)
class Declared:
    """One probe's declaration.

    ``units``: {metric: (unit, unit on GPUs)}. ``on``: the kind of device that a metric is of, where it is declared.
    ``loads``: whether the probe puts load on the machine.
    """

    probe: str
    params: frozenset[str]
    units: Mapping[str, tuple[str, str]]
    on: Mapping[str, str] = dataclasses.field(default_factory=dict)
    loads: bool = True

    def unit(self, metric: str, kind: str) -> str:
        """The unit in which the probe reports ``metric`` on devices of ``kind``. Raises KeyError."""
        unit, gpu_unit = self.units[metric]
        return gpu_unit if kind == "gpu" else unit


@functools.cache
def declared_probes() -> Mapping[str, Declared]:
    """Every probe that the node side ships, by name."""
    return {
        name: Declared(
            probe=name,
            params=frozenset(each["params"]),
            units={metric: (units[0], units[-1]) for metric, units in each["units"].items()},
            on=each["on"],
            loads=each["loads"],
        )
        for name, each in json.loads(FILE.read_text()).items()
    }


def condensed(declarations: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the content of ``FILE`` for these declarations (see ``muster_node.agent.registry.declaration``).

    ``units``: {metric: [unit]}, or [unit, unit on GPUs] where they differ.
    """
    return {
        each["name"]: {
            "loads": each["loads"],
            "on": {name: metric["on"] for name, metric in sorted(each["metrics"].items()) if metric["on"]},
            "params": sorted(each["params"]),
            "units": {
                name: list(dict.fromkeys((metric["unit"], metric["gpu_unit"])))
                for name, metric in sorted(each["metrics"].items())
            },
        }
        for each in declarations
    }


def _main() -> None:
    """Read ``python -m muster_node probes --json`` from standard input and write ``FILE``."""
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}"
        for name, each in sorted(condensed(json.load(sys.stdin)["probes"]).items())
    )
    FILE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    _main()
