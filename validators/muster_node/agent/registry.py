"""The registry of probes: every file of the probes package is one, also inside the zipapp.

A probe file that cannot be imported does not hide the others: it is listed as broken, with the reason.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pkgutil
import shutil
from collections.abc import Collection, Sequence
from typing import Any

from muster_node.contract import NAME, UNIT
from muster_node.hardware.seam import Hardware
from muster_node.probe import Probe

PROBE_PACKAGES = ("muster_node.probes",)


@dataclasses.dataclass(frozen=True)
class Registry:
    """Probes by name, and the files that could not be used: module → one sentence."""

    probes: dict[str, type[Probe]]
    broken: dict[str, str]


def discover(packages: Sequence[str] = PROBE_PACKAGES, wanted: Collection[str] = ()) -> Registry:
    """Looks through ``packages``. Files whose name begins with "_" are helpers.

    With ``wanted``, it begins with the files of these names and stops once it has these probes: to import all takes
    longer than a small job.
    """
    probes: dict[str, type[Probe]] = {}
    broken: dict[str, str] = {}
    found = [
        (info.name not in wanted, info.name, f"{package}.{info.name}")
        for package in packages
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if not info.name.startswith("_")
    ]
    for _, _, module_name in sorted(found):
        if wanted and probes.keys() >= set(wanted):
            break
        try:
            for probe in probes_in(module_name).values():
                _check(probe, probes)
                probes[probe.name] = probe
        except Exception as error:
            broken[module_name] = f"{type(error).__name__}: {str(error)[:300]}"
    return Registry(probes, broken)


def probes_in(module_name: str) -> dict[str, type[Probe]]:
    """The probes that one module defines, by name. Raises whatever its import raises."""
    module = importlib.import_module(module_name)
    return {
        thing.name: thing
        for thing in vars(module).values()
        if isinstance(thing, type)
        and issubclass(thing, Probe)
        and thing.__module__ == module_name
        and "name" in vars(thing)
    }


def _check(probe: type[Probe], known: dict[str, type[Probe]]) -> None:
    for attribute in ("name", "stage", "doc"):
        if not isinstance(getattr(probe, attribute, None), str):
            raise ValueError(f"probe class {probe.__name__} declares no {attribute}")
    if probe.name in known:
        raise ValueError(f"probe name {probe.name} is taken by {known[probe.name].__module__}")
    for name in (probe.name, *probe.metrics):
        if not NAME.fullmatch(name):
            raise ValueError(f"probe {probe.name}: the controller takes no name {name!r}: use letters, digits and _")
    for name, metric in probe.metrics.items():
        for unit in (metric.unit, metric.unit_on("gpu0")):
            if not UNIT.fullmatch(unit):
                raise ValueError(f"probe {probe.name}: the controller takes no unit {unit!r} of {name}: use ASCII")


def declaration(probe: type[Probe]) -> dict[str, Any]:
    """A probe's declaration as plain data."""
    return {
        "name": probe.name,
        "stage": probe.stage,
        "doc": probe.doc,
        "params": {name: {"default": param.default, "doc": param.doc} for name, param in sorted(probe.params.items())},
        "metrics": {
            name: {"unit": metric.unit, "gpu_unit": metric.unit_on("gpu0"), "on": metric.on, "doc": metric.doc}
            for name, metric in sorted(probe.metrics.items())
        },
        "needs": list(probe.needs),
        "loads": probe.loads,
    }


def lacking(probe: type[Probe], hardware: Hardware) -> str:
    """Why the probe cannot run here: the first of its needs that is missing, in a sentence; "" if none is."""
    for need in probe.needs:
        kind, _, program = need.partition(":")
        if need == "torch":
            if importlib.util.find_spec("torch") is None:
                return "PyTorch is not installed for this Python"
        elif need == "gpu":
            if not hardware.devices("gpu"):
                return "no GPU answers"
        elif kind != "tool":
            return f"needs {need}, which this agent does not know"
        elif shutil.which(program) is None:
            return f"{program} is not installed"
    return ""
