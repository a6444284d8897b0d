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
NO_FIGURE, TOO_LOW, ABOVE_BEST = "no-figure", "floor-too-low", "floor-above-best"
OF_FIGURES = (NO_FIGURE, TOO_LOW, ABOVE_BEST)
"""Problems of a floor that the published figures show."""
LEAST_SHARE = 0.5
"""A floor below this share of the best known figure is taken for a mistake, often of the unit."""
LEAST_OF_PEAK = 0.05
"""The same of a floor without a figure, against the physical peak."""

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
            yield from _above_peak(sku, key, figure, figure.best)
    for index, peaks in enumerate(sku.peaks):
        yield from _borrowed(sku, f"peaks.{index}", peaks.source)


def limits_of(sku: Sku) -> Iterator[tuple[str, str, Limit]]:
    """Yields (section, the entry's place and name as problems give it, the limit)."""
    for section in ("inventory", "limits"):
        for index, limit in enumerate(getattr(sku, section)):
            yield section, f"{section}.{index} ({limit.name})", limit


def _against_figures(sku: Sku, limit: Limit, number: float) -> Iterator[tuple[str, str]]:
    """Yields (code, message)."""
    floor, lead = in_base_units(number, limit.unit), f"the floor of {number:g} {limit.unit}"
    peaks = [peak for peak in _peaks(sku) if _alike(peak, limit)]
    above = next((peak for peak in peaks if floor > in_base_units(peak.number or 0.0, peak.unit)), None)
    if above is not None:
        yield "floor-above-peak", f"{lead} is above {above.number:g} {above.unit} ({above.source})"
        return
    figures = [figure for figure in sku.figures if _alike(figure, limit)]
    for figure in figures:
        if figure.best is not None:
            best = in_base_units(figure.best, figure.unit)
            known = f"{figure.best:g} {figure.unit}, the best known figure ({figure.source})"
            if floor > best:
                yield ABOVE_BEST, f"{lead} is above {known}"
            elif floor < LEAST_SHARE * best:
                share = f"{100 * floor / best:.2g} %"
                yield TOO_LOW, f"{lead} is {share} of {known}: less than half a device would pass it"
    low = next((peak for peak in peaks if floor < LEAST_OF_PEAK * in_base_units(peak.number or 0.0, peak.unit)), None)
    if not figures and low is not None:
        share = f"less than {100 * LEAST_OF_PEAK:g} % of {low.number:g} {low.unit} ({low.source})"
        yield TOO_LOW, f"{lead} is {share}: next to nothing would break it"
    if not figures and not peaks:
        yield (
            NO_FIGURE,
            f"{lead} has no best known figure and no physical peak to be checked by: give one under figures or peaks",
        )


def _above_peak(sku: Sku, key: str, figure: Figure, best: float) -> Iterator[Problem]:
    """Yields a problem for a ``best`` beyond the peak, which cannot be a measurement of the device."""
    for peak in _peaks(sku):
        covers = peak.applies_to(figure.metric, figure.device, figure.labels)
        if covers and in_base_units(best, figure.unit) > in_base_units(peak.number or 0.0, peak.unit):
            message = f"the best of {best:g} {figure.unit} is above {peak.number:g} {peak.unit} ({peak.source})"
            yield Problem(sku.file, key, "best-above-peak", message)


def _peaks(sku: Sku) -> Iterator[Limit]:
    """Ceilings that no measurement of a rate can exceed."""
    ceilings = (each for each in sku.all_limits if (each.key, each.breach) == ("ceiling", "invalid"))
    return (each for each in ceilings if each.number and each.unit in SCALE)


def _alike(one: Figure | Limit, limit: Limit) -> bool:
    return (one.metric, one.device) == (limit.metric, limit.device) and labels_meet(one, limit)


def labels_meet(one: Figure | Limit, other: Limit) -> bool:
    """Whether a measurement may have the labels of both."""
    return all(one.labels[key] == other.labels[key] for key in one.labels.keys() & other.labels.keys())


def _borrowed(sku: Sku, key: str, source: str) -> Iterator[Problem]:
    """Yields a problem for a number whose source names other models only."""
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
