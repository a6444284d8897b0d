"""The probes that a stage runs at a level, with parameters, time limits and own seeds; and what it must have
measured."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from muster_criteria.sku_files.declarations import declared_probes
from muster_criteria.sku_files.model import ProbeUse, Programme, Requirement, Sensor, Sku, SkuError
from muster_criteria.stages import LEVELS

START_AND_COLLECT_S = 60.0
"""Added to the probes' time limits for the job's deadline: starting the agent, the in-use guard, writing the result."""


@dataclasses.dataclass(frozen=True)
class CallSpec:
    """One probe to run, with the seed that makes its data reproducible."""

    probe: str
    params: dict[str, Any]
    timeout_s: float
    seed: int


@dataclasses.dataclass(frozen=True)
class Need:
    """One metric, with labels, that one probe must have measured on each device of ``requirement.devices``."""

    probe: str
    requirement: Requirement
    labels: tuple[tuple[str, str], ...]


def stage_calls(sku: Sku, stage: str, level: str, seed: int) -> tuple[CallSpec, ...]:
    """The probes of a stage, in order. Raises SkuError for a stage or level that the programme does not have."""
    return tuple(
        CallSpec(probe, use.params_at(level), use.timeout_at(level), _seed(seed, stage, probe))
        for probe, use in stage_probes(sku, stage, level).items()
    )


def stage_probes(sku: Sku, stage: str, level: str) -> dict[str, ProbeUse]:
    """The probes that a stage uses at a level. Raises SkuError as ``stage_calls``."""
    if level not in LEVELS:
        raise SkuError(f"there is no level {level!r}: it is one of {', '.join(LEVELS)}.")
    return {name: use for name, use in sku.stage(stage).probes.items() if level in use.levels}


def watching(sku: Sku, stage: str, level: str) -> tuple[str, ...]:
    """The probes of a stage that put no load on the node, and show what a load did to it; a repeat runs them too."""
    declared = declared_probes()
    return tuple(name for name in stage_probes(sku, stage, level) if name in declared and not declared[name].loads)


def stage_deadline_s(sku: Sku, stage: str, level: str) -> float:
    """Seconds after which the node ends its own job: all probes' time limits, and starting and collecting."""
    return START_AND_COLLECT_S + sum(use.timeout_at(level) for use in stage_probes(sku, stage, level).values())


def test_limit_s(sku: Sku, stages: Iterable[str], level: str) -> float:
    """Seconds that a test of these stages may take, each at its first attempt. Raises SkuError as ``stage_calls``."""
    return sum(stage_deadline_s(sku, stage, level) for stage in stages)


def blocking(sku: Sku, stage: str) -> bool:
    """Returns whether a FAIL of this stage ends the run, so that a broken node gets no further burn."""
    return sku.stage(stage).blocking


def needs(sku: Sku, stage: str, level: str) -> tuple[Need, ...]:
    """Everything that the stage must have measured at this level: by the programme and the SKU's sensors, except what
    the model cannot give."""
    wanted = [need for probe, use in stage_probes(sku, stage, level).items() for need in needs_of(probe, use.require)]
    wanted += [need for each in sku.sensors if each.stage == stage for need in needs_of(each.probe, [each])]
    return tuple(need for need in wanted if level in need.requirement.levels and not _absent(need, sku))


def requires(sku: Sku, probe: str, use: ProbeUse) -> bool:
    """Whether the programme requires, at any level, what the model can give of a probe: then it may not be skipped."""
    return not all(_absent(need, sku) for need in needs_of(probe, use.require))


def _absent(need: Need, sku: Sku) -> bool:
    return any(absent.covers(need.requirement.metric, dict(need.labels)) for absent in sku.absent)


def needs_of(probe: str, require: Iterable[Requirement]) -> Iterator[Need]:
    """Each metric that ``probe`` is required to measure, once for each of its labels' values."""
    for requirement in require:
        keys = sorted(requirement.labels)
        for values in itertools.product(*(requirement.labels[key] for key in keys)):
            yield Need(probe, requirement, tuple(zip(keys, values, strict=True)))


def source_units(programme: Programme) -> dict[tuple[str, str], str]:
    """(metric, kind of device) → the only unit in which the programme derives other metrics from it."""
    units: dict[tuple[str, str], str] = {}
    for each in programme.derive:
        units |= {(each.of, each.device): each.of_unit, (each.per, each.device): each.per_unit}
    return units


def promised(need: Need) -> bool:
    """Returns whether this is a sensor that the SKU promises, not a requirement of the programme."""
    return isinstance(need.requirement, Sensor)


def _seed(seed: int, stage: str, probe: str) -> int:
    digest = hashlib.sha256(f"{seed}/{stage}/{probe}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
