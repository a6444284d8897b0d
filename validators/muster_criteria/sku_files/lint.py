"""Problems of a readable SKU file: limits that contradict each other, names and units that no probe has."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from muster_criteria.devices import kind_of
from muster_criteria.kinds import LIMIT_KINDS
from muster_criteria.kinds.kind import Times
from muster_criteria.sku_files.declarations import Declared, declared_probes
from muster_criteria.sku_files.figures import in_base_units
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.lint_figures import FLOORS, OF_FIGURES, figure_problems, labels_meet, limits_of
from muster_criteria.sku_files.model import BLOCK_LIMITS, PAIR_RATE, ProbeUse, Problem, Sku
from muster_criteria.sku_files.programme import Need, needs, stage_probes
from muster_criteria.stages import LEVELS, STAGES

CEILINGS = ("ceiling", "at_most")
GIVEN_TWICE = "given-twice"
OTHER_UNIT = ""
"""A unit that no limit is in: a kind that takes it judges measurements whatever their unit."""


def problems_of(sku: Sku) -> list[Problem]:
    """Returns contradictions within a SKU, and names that the shipped probes do not have.

    Learned floors, for each stack and level, are checked only if the SKU itself is right. A learned floor may meet a
    floor of the SKU: the higher one counts. It is not checked against published figures, which hold for other
    conditions: it is based on the fleet's own readings.
    """
    return _problems_of(sku) or [
        dataclasses.replace(found, file=f"learned/{sku.name}-{file.revision:04d}.yaml")
        for file in sku.learned
        for found in _problems_of(sku.on(file.stack, file.level))
        if found.code not in (GIVEN_TWICE, *OF_FIGURES)
    ]


def _problems_of(sku: Sku) -> list[Problem]:
    probes = declared_probes()
    return [
        *_misplaced(sku),
        *_contradictions(sku),
        *_unknown_metrics(sku, probes),
        *_programme_problems(sku, probes),
        *_derivation_problems(sku, probes),
        *_comparison_problems(sku, probes),
        *_unmet_sensors(sku, probes),
        *dict.fromkeys(_unmet_references(sku, probes)),
        *figure_problems(sku),
    ]


def _misplaced(sku: Sku) -> Iterator[Problem]:
    for section, key, limit in limits_of(sku):
        if limit.kind.section != section:
            allowed = ", ".join(key for key, kind in LIMIT_KINDS.items() if kind.section == section)
            yield Problem(
                sku.file, key, "wrong-section", f"{limit.key} does not belong in {section} (there: {allowed})"
            )


def _contradictions(sku: Sku) -> Iterator[Problem]:
    """Yields what each entry contradicts in the first later one: 1,000 copies would make half a million pairs."""
    of_metric: dict[tuple[str, str], list[tuple[str, Limit]]] = collections.defaultdict(list)
    for _, key, limit in limits_of(sku):
        of_metric[limit.metric, limit.device].append((key, limit))
    for entries in of_metric.values():
        for place, (key, one) in enumerate(entries, start=1):
            clashes = (found for _, other in itertools.islice(entries, place, None) if (found := _clashes(one, other)))
            yield from (Problem(sku.file, key, code, clash) for code, clash in next(clashes, ()))


def _clashes(one: Limit, other: Limit) -> list[tuple[str, str]]:
    if not _overlap(one, other):
        return []
    found = []
    if one.key == other.key and one.breach == other.breach:
        found.append((GIVEN_TWICE, f"is given twice for breach {one.breach}"))
    for low, high in ((one, other), (other, one)):
        if low.key in FLOORS and high.key in CEILINGS and _above(low, high):
            what = "physical peak" if high.breach == "invalid" else "ceiling"
            clash = f"the floor of {low.number:g} {low.unit} is above the {what} of {high.number:g} {high.unit}"
            found.append(("floor-above-ceiling", clash))
    return found


def _above(low: Limit, high: Limit) -> bool:
    if low.number is None or high.number is None:
        return False
    return in_base_units(low.number, low.unit) > in_base_units(high.number, high.unit)


def _overlap(one: Limit, other: Limit) -> bool:
    if one.stages and other.stages and not set(one.stages) & set(other.stages):
        return False
    return labels_meet(one, other)


def _unknown_metrics(sku: Sku, probes: Mapping[str, Declared]) -> Iterator[Problem]:
    peaks = (("limits", f"peaks ({limit.name})", limit) for limit in sku.physical_peaks)
    derived = {each.metric for each in sku.programme.derive}
    for _, key, limit in itertools.chain(limits_of(sku), peaks):
        yield from (Problem(sku.file, key, code, message) for code, message in limit.kind.problems(limit))
        if limit.kind.takes(limit, OTHER_UNIT):
            continue
        odd = dict(_unlike_probes(limit.metric, limit.device, limit.unit, probes))
        yield from (Problem(sku.file, key, code, message) for code, message in odd.items())
        unknown = set(limit.stages) - set(STAGES)
        for stage in unknown:
            message = f"there is no stage {stage} (there are {', '.join(STAGES)})"
            yield Problem(sku.file, key, "unknown-stage", message)
        stages = () if unknown or "unknown-metric" in odd else limit.stages
        if stages and not any(_measured_in(sku, stage, limit.metric, probes) for stage in stages):
            message = f"no probe of stage {' or '.join(stages)} measures {limit.metric}"
            yield Problem(sku.file, key, "not-measured", message)
        named = {**dict.fromkeys(limit.invalidates, "invalidates"), **dict.fromkeys(limit.explains, "explains")}
        for metric, verb in named.items():
            if metric not in derived and not any(metric in probe.units for probe in probes.values()):
                message = f"no probe measures {metric}, which it {verb}"
                yield Problem(sku.file, key, "unknown-metric", message)
        value = limit.value
        if isinstance(value, Times) and not any(value.metric in probe.units for probe in probes.values()):
            message = f"no probe measures {value.metric}, which it refers to"
            yield Problem(sku.file, key, "unknown-metric", message)


def _unlike_probes(metric: str, device: str, unit: str, probes: Mapping[str, Declared]) -> Iterator[tuple[str, str]]:
    """Yields (code, message) for each mismatch between the metric and what the probes report."""
    of = [probe for probe in probes.values() if metric in probe.units]
    units = {probe.unit(metric, device) for probe in of}
    kinds = {probe.on.get(metric, device) for probe in of}
    if not of:
        yield "unknown-metric", f"no probe measures {metric}"
    elif unit not in units:
        yield "wrong-unit", f"the unit is {unit}, but probes report {metric} in {' or '.join(sorted(units))}"
    if kinds and device not in kinds:
        yield "wrong-device", f"the device is {device}, but probes report {metric} on {' or '.join(sorted(kinds))}"


def _measured_in(sku: Sku, stage: str, metric: str, probes: Mapping[str, Declared]) -> bool:
    plan = sku.programme.stages.get(stage)  # type: ignore[call-overload]
    return plan is not None and any(metric in probes[name].units for name in plan.probes if name in probes)


def _programme_problems(sku: Sku, probes: Mapping[str, Declared]) -> Iterator[Problem]:
    file = f"programmes/{sku.programme.programme}.yaml"
    for name, use in sku.block.probes.items():
        yield from _use_problems(sku, "programmes/block.yaml", f"probes.{name}", use, probes)
    judged = {metric for name in sku.block.probes if name in probes for metric in probes[name].units}
    judged |= {PAIR_RATE, *(metric for metric, _, _ in BLOCK_LIMITS)}
    for index, limit in enumerate(sku.block.limits):
        if limit.metric not in judged:
            message = f"no probe of a block measures {limit.metric}"
            yield Problem("programmes/block.yaml", f"limits.{index} ({limit.name})", "unknown-metric", message)
    for stage, plan in sku.programme.stages.items():
        for name, use in plan.probes.items():
            yield from _use_problems(sku, file, f"stages.{stage}.probes.{name}", use, probes)
        for level in LEVELS:
            wanted = needs(sku, stage, level)
            if not wanted:
                message = f"requires nothing at level {level}, so it could never pass"
                yield Problem(file, f"stages.{stage}", "nothing-required", message)
            elif not any(need.requirement.judged or _limited(sku, stage, need) for need in wanted):
                message = f"requires nothing at level {level} that is judged or has a limit, so it could never pass"
                yield Problem(file, f"stages.{stage}", "nothing-judged", message)


def _use_problems(sku: Sku, file: str, key: str, use: ProbeUse, probes: Mapping[str, Declared]) -> Iterator[Problem]:
    probe = probes.get(key.rpartition(".")[2])
    if probe is None:
        known = ", ".join(sorted(probes)) or "none"
        message = f"there is no such probe; `make declarations` enters a new one (known are {known})"
        yield Problem(file, key, "unknown-probe", message)
        return
    for param in sorted(set(use.params) - probe.params):
        known = ", ".join(sorted(probe.params)) or "none"
        yield Problem(file, key, "unknown-parameter", f"the probe has no parameter {param} (it has {known})")
    if use.sequential:
        yield from _not_noise(sku, file, key, probe)
    for wanted in use.require:
        if wanted.shown and wanted.metric not in probe.units:
            message = f"requires {wanted.metric}, which the probe does not measure"
            yield Problem(file, key, "unknown-metric", message)
        if wanted.or_judged and wanted.or_judged not in [each.metric for each in use.require]:
            message = f"has {wanted.or_judged} judged where {wanted.metric} is not readable, and does not require it"
            yield Problem(file, key, "not-required", message)


def _derivation_problems(sku: Sku, probes: Mapping[str, Declared]) -> Iterator[Problem]:
    """Yields problems of derived metrics with inputs that no probe reports in that way."""
    file = f"programmes/{sku.programme.programme}.yaml"
    for index, each in enumerate(sku.programme.derive):
        key = f"derive.{index} ({each.metric})"
        for metric, unit in ((each.of, each.of_unit), (each.per, each.per_unit)):
            odd = _unlike_probes(metric, each.device, unit, probes)
            yield from (Problem(file, key, code, message) for code, message in odd)


def _comparison_problems(sku: Sku, probes: Mapping[str, Declared]) -> Iterator[Problem]:
    """Yields problems of compared metrics that no probe reports in that way and no derivation makes."""
    file = f"programmes/{sku.programme.programme}.yaml"
    derived = {(each.metric, each.device, each.unit) for each in sku.programme.derive}
    for index, each in enumerate(sku.programme.compare):
        key = f"compare.{index} ({each.metric})"
        if each.given and not any(
            (other.metric, other.device) == (each.given, each.device) for other in sku.programme.compare
        ):
            yield Problem(file, key, "unknown-metric", f"is given {each.given}, which is not compared on {each.device}")
        if (each.metric, each.device, each.unit) not in derived:
            odd = _unlike_probes(each.metric, each.device, each.unit, probes)
            yield from (Problem(file, key, code, message) for code, message in odd)


def _not_noise(sku: Sku, file: str, key: str, probe: Declared) -> Iterator[Problem]:
    """Yields a problem for a repeated test whose metrics vary from part to part: a repeat excludes noise only."""
    varied = {each.metric for each in sku.programme.compare if each.spread == "varied"}
    for metric in sorted(varied & set(probe.units)):
        message = f"is sequential, but its {metric} varies from part to part, which no repeat changes"
        yield Problem(file, key, "sequential-varied", message)


def _limited(sku: Sku, stage: str, need: Need) -> bool:
    """Whether a limit of the SKU judges what is needed."""
    return any(
        limit.breach != "invalid"
        and stage in (limit.stages or (stage,))
        and limit.applies_to(need.requirement.metric, _kind(need), limit.labels | dict(need.labels))
        for limit in sku.all_limits
    )


def _kind(need: Need) -> str:
    return kind_of(need.requirement.devices.removeprefix("each ").replace("core", "cpu"))


def _unmet_references(sku: Sku, probes: Mapping[str, Declared]) -> Iterator[Problem]:
    """Yields each failing limit that is relative to a measurement which a stage does not require of exactly one probe:
    without that measurement the limit judges nothing."""
    relative = [
        (key, each, each.value)
        for _, key, each in limits_of(sku)
        if isinstance(each.value, Times) and each.breach == "fail"
    ]
    for stage, level in itertools.product(sku.programme.stages, LEVELS):
        units = [probes[name].units for name in stage_probes(sku, stage, level) if name in probes]
        wanted = needs(sku, stage, level) if relative else ()
        for key, limit, of in relative:
            if stage not in (limit.stages or (stage,)) or not any(limit.metric in each for each in units):
                continue
            device = "node" if of.device == "node" else limit.device
            required = any(
                need.requirement.metric == of.metric
                and _kind(need) == device
                and of.labels.items() <= dict(need.labels).items()
                for need in wanted
            )
            if not required or sum(of.metric in each for each in units) > 1:
                why = f"refers to {of.metric}, which stage {stage} does not require of one probe"
                yield Problem(sku.file, key, "not-required", why)


def _unmet_sensors(sku: Sku, probes: Mapping[str, Declared]) -> Iterator[Problem]:
    for index, sensor in enumerate(sku.sensors):
        key = f"sensors.{index} ({sensor.metric})"
        plan = sku.programme.stages.get(sensor.stage)
        if plan is None or sensor.probe not in plan.probes:
            message = f"the programme does not run {sensor.probe} in stage {sensor.stage}"
            yield Problem(sku.file, key, "sensor-not-run", message)
        elif sensor.probe in probes and sensor.metric not in probes[sensor.probe].units:
            yield Problem(sku.file, key, "unknown-metric", f"probe {sensor.probe} does not read {sensor.metric}")
