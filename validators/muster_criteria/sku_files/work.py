"""What the probes of a programme have to do: a measurement with other parameters is another quantity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster_criteria.sku_files.declarations import declared_probes
from muster_criteria.sku_files.learned import LearnedFile
from muster_criteria.stages import LEVELS
from muster_criteria.words import listed

if TYPE_CHECKING:
    from muster_criteria.sku_files.model import Sku


def work_of(programme: Mapping[str, Any], level: str) -> dict[str, str]:
    """{"stage/probe": digest of the probe's parameters at ``level``}; ``programme``: a ``Programme`` as JSON."""
    return {
        f"{stage}/{probe}": _digest({name: at_level(value, level) for name, value in use["params"].items()})
        for stage, plan in programme["stages"].items()
        for probe, use in plan["probes"].items()
        if level in use["levels"]
    }


def sku_work(sku: Sku, level: str) -> dict[str, str]:
    """What the probes of a SKU have to do at ``level`` (see ``work_of``)."""
    return work_of(sku.programme.model_dump(mode="json"), level)


def other_quantities(sku: Sku, stage: str, one: Mapping[str, str], other: Mapping[str, str]) -> frozenset[str]:
    """The metrics that the stage's probes measured with different parameters in ``one`` and ``other`` (both from
    ``work_of``), and those that the programme derives from them."""
    both = one.keys() & other.keys()
    changed = [
        each for each in sku.stage(stage).probes if (key := f"{stage}/{each}") in both and one[key] != other[key]
    ]
    metrics = {metric for probe in changed for metric in declared_probes()[probe].units}
    return frozenset(metrics | {each.metric for each in sku.programme.derive if metrics & {each.of, each.per}})


def outdated(sku: Sku, file: LearnedFile) -> frozenset[str]:
    """The metrics whose floors in a learned revision no longer apply: they are measured with other parameters now."""
    now = sku_work(sku, file.level)
    changed = [other_quantities(sku, stage, file.work, now) for stage in sku.programme.stages]
    return frozenset(limit.metric for limit in file.limits) & frozenset[str]().union(*changed)


def outdated_notes(sku: Sku, level: str = "") -> list[str]:
    """A sentence for each learned revision in force, at ``level`` or any, with floors that no longer apply."""
    return [
        f"{sku.name}: the learned floors of {listed(sorted(metrics))} in revision {file.revision} apply to nothing, "
        f"since other parameters measure them now: run `muster sku learn {sku.name} --level {file.level}` again"
        for file in sku.learned
        if file.level == (level or file.level) and (metrics := outdated(sku, file))
    ]


def _digest(params: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(params, sort_keys=True).encode()).hexdigest()[:16]


def is_per_level(value: object) -> bool:
    """Returns whether a YAML value is a map from levels to values."""
    return isinstance(value, dict) and bool(value) and set(value) <= set(LEVELS)


def at_level(value: Any, level: str) -> Any:
    """``value`` itself, or its entry for ``level`` where it is a map from levels to values."""
    return value[level] if is_per_level(value) else value
