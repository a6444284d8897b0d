"""Floors that cannot be right: above the best known figure, far below it, without one, or taken from another model.

A measured rate must name its software (``stack``): a figure's ``best``, and a ``floor`` or ``ceiling`` on a rate. What
does not depend on software is exempt: the inventory, data-sheet and physical peaks, counts, temperatures, and shares of
other measurements on the same node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from muster_criteria.sku_files.figures import NOT_STATED, SCALE, Figure, in_base_units
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Problem, Sku

FLOORS = ("floor", "at_least")
LEAST_SHARE = 0.5
"""A floor below this share of the best known figure is taken for a mistake, often of the unit."""

RATES = (*SCALE, "TFLOPS/GHz")
"""Units of rates that depend on software."""

_MODEL = re.compile(r"\b(?:GB|GH|MI|[ABHLV])\d{2,3}[SX]?\b")
"""Model names: H100, GB200, L40S, MI300X."""


def figure_problems(sku: Sku) -> Iterator[Problem]:
    """Floors that contradict the SKU's figures, numbers taken from another model, and rates without a stack."""
    for section, key, limit in limits_of(sku):
        if limit.key in FLOORS and limit.number is not None and limit.unit in SCALE and section == "limits":
            for code, message in _against_figures(sku, limit, limit.number):
                yield Problem(sku.file, key, code, message)
        if limit.number is not None:
            yield from _borrowed(sku, key, limit.source)
        if section == "limits" and _is_measured(limit):
            yield from _without_stack(sku, key, limit.stack)
    for index, figure in enumerate(sku.figures):
        key = f"figures.{index} ({figure.name})"
        yield from _borrowed(sku, key, figure.source)
        if figure.best is not None:
            yield from _without_stack(sku, key, figure.stack)


def limits_of(sku: Sku) -> Iterator[tuple[str, str, Limit]]:
    """Yields (section, the entry's place and name as problems give it, the limit)."""
    for section in ("inventory", "limits"):
        for index, limit in enumerate(getattr(sku, section)):
            yield section, f"{section}.{index} ({limit.name})", limit


def _against_figures(sku: Sku, limit: Limit, number: float) -> Iterator[tuple[str, str]]:
    """Yields (code, message)."""
    figures = [figure for figure in sku.figures if _alike(figure, limit)]
    floor, lead = in_base_units(number, limit.unit), f"the floor of {number:g} {limit.unit}"
    for figure in figures:
        if figure.peak is not None and floor > in_base_units(figure.peak, figure.unit):
            yield (
                "floor-above-peak",
                f"{lead} is above the physical peak of {figure.peak:g} {figure.unit} ({figure.source})",
            )
        elif figure.best is not None:
            best = in_base_units(figure.best, figure.unit)
            known = f"{figure.best:g} {figure.unit}, the best known figure ({figure.source})"
            if floor > best:
                yield "floor-above-best", f"{lead} is above {known}"
            elif floor < LEAST_SHARE * best:
                share = f"{100 * floor / best:.2g} %"
                yield "floor-too-low", f"{lead} is {share} of {known}: less than half a device would pass it"
    ceilings = (other for other in sku.limits if other.breach == "invalid" and other.key == "ceiling")
    if not figures and not any(_alike(other, limit) for other in ceilings):
        yield (
            "no-figure",
            f"{lead} has no best known figure and no physical peak to be checked by: give one under figures",
        )


def _alike(one: Figure | Limit, limit: Limit) -> bool:
    return (one.metric, one.device) == (limit.metric, limit.device) and labels_meet(one, limit)


def labels_meet(one: Figure | Limit, other: Limit) -> bool:
    """Whether a measurement may have the labels of both."""
    return all(one.labels[key] == other.labels[key] for key in one.labels.keys() & other.labels.keys())


def _borrowed(sku: Sku, key: str, source: str) -> Iterator[Problem]:
    """Reports a number whose source names other models only."""
    named = set(_MODEL.findall(source))
    if sku.names and named and not named & set(sku.names):
        models, own = ", ".join(sorted(named)), " or ".join(sku.names)
        yield Problem(sku.file, key, "borrowed", f"is borrowed: its source speaks of {models}, not of {own}")


def _is_measured(limit: Limit) -> bool:
    absolute = limit.key in ("floor", "ceiling") and limit.number is not None
    return absolute and limit.breach != "invalid" and limit.unit in RATES


def _without_stack(sku: Sku, key: str, stack: str) -> Iterator[Problem]:
    if not stack.strip():
        wanted = f'driver, CUDA and libraries as its source states them, or "{NOT_STATED}"'
        yield Problem(sku.file, key, "no-stack", f"is a measured rate without a stack: give {wanted}")
