"""Calibrates floors from enough healthy nodes on one stack, by robust statistics, and reports floors that would sink.

Pure: readings (``fleet.series.readings``) of one level and the SKU give a ``Calibration``; ``learned`` writes it as a
file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from scipy.stats import median_abs_deviation

from muster_criteria.fleet.series.readings import stack_of
from muster_criteria.labels import labelled, labels_of
from muster_criteria.sku_files.declarations import declared_probes
from muster_criteria.sku_files.learned import (
    Basis,
    Calibration,
    LearnedFile,
    LearnedFloor,
    Note,
    Remark,
    breaches,
    floors_of,
)
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku

NODES_MIN = 16
"""Nodes needed to calibrate (docs/science.md#calibrated-floors)."""
FLEET_SHARE = 0.05
"""On a changed stack, at least this share of the measured fleet too (docs/science.md#calibrated-floors)."""
Z_MAX, EFFECT_MIN = 3.5, 0.03
"""A node so far below the others, by robust z and by effect, is left out: it may be what the floor is to catch."""
SIGMA_MIN = 0.005
FAIL_SHARE, FAIL_SIGMAS = 0.90, 5.0
WARN_SHARE, WARN_SIGMAS = 0.95, 3.5
"""A floor is the lowest of this share of the median, the median less so many sigmas, and the slowest healthy device
(docs/science.md#calibrated-floors)."""
LOWER_MAX = 0.02
"""A floor that would sink by more than this share keeps its last value: lowering it is a person's decision."""
RATE_UNITS = ("TFLOPS", "GFLOPS", "GB/s", "MB/s", "Gb/s", "TFLOPS/GHz")
DIGITS = 4


def rates(sku: Sku) -> list[str]:
    """The metrics whose floors can be learned: those that the SKU limits, requires or compares, if they are rates."""
    plans = sku.programme.stages.values()
    wanted = {required.metric for plan in plans for use in plan.probes.values() for required in use.require}
    wanted |= {limit.metric for limit in sku.limits} | {each.metric for each in sku.programme.compare}
    units = [unit for probe in declared_probes().values() for unit in probe.units.items()]
    return sorted(wanted & {metric for metric, among in units if not set(RATE_UNITS).isdisjoint(among)})


def learn(
    readings: pd.DataFrame, before: Sequence[LearnedFile], stack: str = "", limits: Sequence[Limit] = ()
) -> Calibration:
    """Learns from the latest reading of each device.

    ``before``: the revisions in force at the level of the readings, the newest first. ``stack``: the stack to learn;
    default: the one that most nodes run. ``limits``: the SKU's own, which stay in force; a note names those above what
    was learned.
    """
    frame = readings[readings["unit"].isin(RATE_UNITS)].copy()
    frame["stack"] = frame["group"].astype(str).map(stack_of)
    counted = frame.groupby("stack")["node"].nunique().sort_values(ascending=False)
    fleet = int(frame["node"].nunique())
    chosen = stack or (str(counted.index[0]) if len(counted) else "")
    nodes = int(counted.get(chosen, 0))
    own = next((each for each in before if each.stack == chosen), None)
    changed = bool(before) and own is None
    least = max(NODES_MIN, math.ceil(FLEET_SHARE * fleet)) if changed else NODES_MIN
    if nodes < least:
        others = "; ".join(f"{count} run {name or 'an unknown stack'}" for name, count in counted.items())
        why = f"{nodes} healthy nodes are measured on {chosen or 'any stack'}, and {least} are needed"
        return Calibration(chosen, nodes, least, changed, refused=f"{why}{f' ({others})' if others else ''}")
    learned, left_out, notes = [], set(), []
    for (kind, metric, labels, unit), group in frame[frame["stack"] == chosen].groupby(
        ["kind", "metric", "labels", "unit"], observed=True
    ):
        healthy, suspects = _healthy(group)
        left_out |= suspects
        name = labelled(str(metric), labels_of(str(labels)))
        if (count := int(healthy["node"].nunique())) < least:
            notes.append(Note(Remark.TOO_FEW_NODES, name, f"{count} nodes measured it, so no floor was learned"))
            continue
        found = _floors(healthy, str(metric), str(kind), str(labels), str(unit))
        kept = None if own is None else _sunk(found, floors_of(own))
        if kept is None and found.fail <= 0:
            wide = "the readings spread too widely for a floor (is this more than one model?), so none was learned"
            notes.append(Note(Remark.TOO_WIDE, name, wide))
            continue
        if kept is not None:
            sinks = f"the floor would sink from {kept.fail:g} to {found.fail:g} {unit}, so the old floor is kept"
            notes.append(Note(Remark.FLOOR_KEPT, name, sinks))
        learned.append(kept or found)
    canary = (changed or (own is not None and own.canary)) and nodes < fleet / 2
    notes += list(_slower(learned, floors_of(before[0]))) if changed else []
    notes += _below_own(learned, limits, canary)
    return Calibration(chosen, nodes, least, canary, tuple(learned), tuple(sorted(left_out)), tuple(notes))


def _healthy(group: pd.DataFrame) -> tuple[pd.DataFrame, set[str]]:
    """Returns (the readings without low outlier nodes, names of these nodes); repeats until none is left."""
    suspects: set[str] = set()
    while True:
        kept = group[~group["node"].isin(suspects)]
        by_node = kept.groupby("node", observed=True)["value"].min()
        middle = float(by_node.median())
        sigma = _sigma(by_node.to_numpy(dtype=float), middle)
        below = by_node[(middle - by_node > Z_MAX * sigma) & (middle - by_node > EFFECT_MIN * middle)]
        if below.empty:
            return kept, suspects
        suspects |= {str(name) for name in below.index}


def _sigma(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], middle: float) -> float:
    return max(float(median_abs_deviation(values, scale="normal")), SIGMA_MIN * middle)


def _floors(healthy: pd.DataFrame, metric: str, kind: str, labels: str, unit: str) -> LearnedFloor:
    values = healthy["value"].to_numpy(dtype=float)
    middle, slowest = float(np.median(values)), float(values.min())
    sigma = _sigma(values, middle)
    fail = min(FAIL_SHARE * middle, middle - FAIL_SIGMAS * sigma, slowest)
    warn = min(WARN_SHARE * middle, middle - WARN_SIGMAS * sigma, slowest)
    return LearnedFloor(
        metric=metric,
        kind=kind,
        labels=labels_of(labels),
        unit=unit,
        fail=_rounded_down(fail),
        warn=_rounded_down(warn),
        basis=Basis(
            median=float(f"{middle:.6g}"),
            spread=float(f"{sigma / middle:.4g}"),
            devices=len(healthy.drop_duplicates(["node", "device"])),
            nodes=int(healthy["node"].nunique()),
        ),
    )


def _rounded_down(value: float) -> float:
    """Returns the value rounded down to four digits, the precision of a fleet's figures."""
    if value <= 0:
        return 0.0
    scale = 10.0 ** (DIGITS - 1 - math.floor(math.log10(value)))
    return math.floor(value * scale) / scale


def _sunk(found: LearnedFloor, before: Sequence[LearnedFloor]) -> LearnedFloor | None:
    """The floor of the last revision, if the new one lies more than a little below it."""
    was = _same(found, before)
    return was if was is not None and found.fail < (1.0 - LOWER_MAX) * was.fail else None


def _same(found: LearnedFloor, before: Sequence[LearnedFloor]) -> LearnedFloor | None:
    key = (found.metric, found.kind, found.labels, found.unit)
    return next((was for was in before if (was.metric, was.kind, was.labels, was.unit) == key), None)


def _below_own(learned: Sequence[LearnedFloor], limits: Sequence[Limit], canary: bool) -> Iterator[Note]:
    """Yields a note for each learned floor below the SKU's own floor with the same breach."""
    for found in learned:
        for breach, number, _ in breaches(found, canary):
            own = max((limit.number or 0.0 for limit in limits if _is_floor(limit, breach, found)), default=0.0)
            if number < own:
                above = f"the SKU's own {breach} floor of {own:g} {found.unit} is above the learned one of {number:g}"
                yield Note(Remark.FLOOR_KEPT, found.name, f"{above}, so it stays in force")


def _is_floor(limit: Limit, breach: str, of: LearnedFloor) -> bool:
    """Returns whether the limit is such a floor on the metric."""
    alike = (limit.key, limit.breach) == ("floor", breach) and limit.kind.takes(limit, of.unit)
    return alike and limit.applies_to(of.metric, of.kind, dict(of.labels))


def _slower(learned: Sequence[LearnedFloor], before: Sequence[LearnedFloor]) -> Iterator[Note]:
    """Yields a note for each floor that a new stack lowers."""
    for found in learned:
        was = _same(found, before)
        if was is not None and found.fail < (1.0 - LOWER_MAX) * was.fail:
            share = 100 * (1 - found.fail / was.fail)
            below = f"the new stack's floor is {share:.1f} % below that of the one before"
            yield Note(Remark.FLOOR_LOWERED, found.name, below)
