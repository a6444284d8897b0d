"""What a probe is: a declaration (name, stage, parameters, metrics, needs) and one ``run`` method.

A new probe is one new file in ``muster_node/probes``, which runs where a programme names it. A probe reaches hardware,
compute and time only through ``context.hardware`` (``muster_node.hardware.seam``), and reports
only through the context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, ClassVar

if TYPE_CHECKING:
    import pathlib

    from muster_node.hardware.seam import Hardware


@dataclasses.dataclass(frozen=True)
class Param:
    """A parameter of a probe: its default, and one line with its meaning and unit."""

    default: Any
    doc: str


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric that a probe reports: its unit, and one line with its meaning.

    ``gpu_unit`` is the unit on devices "gpu{slot}" where it differs (a core's rate reads best in GFLOPS, a GPU's in
    TFLOPS). ``on``: the kind of device that it is of, by which SKU files are checked; empty: of several kinds, or not
    declared.
    """

    unit: str
    doc: str
    gpu_unit: str | None = None
    on: str = ""

    def unit_on(self, device: str) -> str:
        """The unit in which this metric is reported on ``device``."""
        return self.gpu_unit if self.gpu_unit and device.startswith("gpu") else self.unit


class Skip(Exception):
    """Raised by a probe that cannot run here; the message is the reason in the result ("no privilege")."""


@dataclasses.dataclass(frozen=True)
class Context:
    """What a running probe is given.

    ``emit(metric, device, value=…, text=…, labels=…, samples=…, spread=…, note=…)`` records a measurement: the metric
    must be declared, its unit is the declaration's ``unit_on(device)``. With ``so_far=True`` it is recorded unless the
    same metric, device and labels are reported with a value or text later: what is found wrong is sent so as soon as it
    is seen, since the probe may be ended at any moment. ``progress(sentence)`` writes a progress line.
    ``scratch`` is a directory of the probe's own, removed afterwards. ``params`` holds every declared parameter.
    """

    hardware: Hardware
    params: Mapping[str, Any]
    seed: int
    scratch: pathlib.Path
    emit: Callable[..., None]
    progress: Callable[[str], None]


class Probe:
    """Base of all probes.

    ``loads``: whether the probe puts load on the machine (then the in-use guard must pass first). ``needs`` names
    requirements: "torch", "gpu", "tool:<program>"; the probe is ``skipped`` if one is missing. ``by_agent``: the
    agent itself measures it during the other probes of the job, and reports where the plan calls it.
    """

    name: ClassVar[str]
    stage: ClassVar[str]
    doc: ClassVar[str]
    params: ClassVar[dict[str, Param]] = {}
    metrics: ClassVar[dict[str, Metric]] = {}
    needs: ClassVar[tuple[str, ...]] = ()
    loads: ClassVar[bool] = True
    by_agent: ClassVar[bool] = False

    @classmethod
    def timed_s(cls, params: Mapping[str, Any], devices: int) -> float:
        """Seconds of timed work that the parameters request on so many devices; untimed work is not included."""
        return float(params.get("seconds") or 0.0)

    def run(self, context: Context) -> None:
        """Measure. Raise Skip where it cannot be done here; anything else raised is recorded as a crash."""
        raise NotImplementedError


def resolve_params(probe: type[Probe], given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults overlaid by what the plan gives. Raises ValueError naming a parameter that the probe does not have."""
    unknown = sorted(set(given) - set(probe.params))
    if unknown:
        known = ", ".join(sorted(probe.params)) or "none"
        raise ValueError("probe {} has no parameter {} (it has: {})".format(probe.name, ", ".join(unknown), known))
    return {name: given.get(name, param.default) for name, param in probe.params.items()}
