"""Observations: every judged row beside its limits, for reports and records."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from muster_criteria.model import Observation
from muster_criteria.sku_files.limits import LIMIT_KEYS, Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.fleet_findings import fleet_source
from muster_criteria.stage.rules import BREACHES, FLEET_KINDS

LOWER = ("floor", "exactly", "expected", "siblings_at_least", "expected_devices", *FLEET_KINDS)
UPPER = ("ceiling", "exactly", "expected", "siblings_at_most", "expected_devices", *FLEET_KINDS)
"""Kinds of rules that give the floor and ceiling shown in reports: the first that applies."""


def observations_of(frame: pd.DataFrame, broken_rows: Collection[int], sku: Sku) -> tuple[Observation, ...]:
    """One observation for each row, in the frame's order; ``ok`` where it is usable and breaks no rule."""
    floors, floor_by = _shown(frame, LOWER, sku, upper=False)
    ceilings, ceiling_by = _shown(frame, UPPER, sku, upper=True)
    texts = _text_limits(frame, sku)
    broken = set(broken_rows)
    columns = ("probe", "metric", "device", "unit", "value", "text", "labels", "samples", "spread", "usable", "note")
    rows = zip(*(frame[column] for column in columns), strict=True)
    observations = []
    for at, (probe, metric, device, unit, value, text, labels, samples, spread, usable, note) in enumerate(rows):
        source = floor_by.get(at) or ceiling_by.get(at) or texts.get(at, "")
        observations.append(
            Observation(
                probe=probe,
                metric=metric,
                device=device,
                unit=unit,
                value=_number(value),
                text=text,
                labels=labels,
                samples=int(samples),
                spread=_number(spread),
                floor=_number(floors[at]),
                ceiling=_number(ceilings[at]),
                source=source,
                ok=bool(usable) and at not in broken,
                note=note,
            )
        )
    return tuple(observations)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _shown(
    frame: pd.DataFrame, kinds: tuple[str, ...], sku: Sku, *, upper: bool
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], dict[int, str]]:
    """Returns (each row's shown floor or ceiling, {row: its source})."""
    shown = np.full(len(frame), np.nan)
    by: dict[int, str] = {}
    for breach in BREACHES:
        for kind in kinds:
            column = f"{kind}_{breach}"
            if column not in frame.columns:
                continue
            at, who = frame[f"{column}_at"].to_numpy(), frame[f"{column}_by"].to_numpy()
            if kind in FLEET_KINDS:
                above = at > frame[f"{column}_expected"].to_numpy()
                for row in np.flatnonzero(np.isnan(shown) & np.isfinite(at) & (above == upper)):
                    shown[row], by[int(row)] = at[row], fleet_source(kind, breach, sku.programme.compare[int(who[row])])
                continue
            for row in np.flatnonzero(np.isnan(shown) & ~np.isnan(at)):
                limit = sku.all_limits[who[row]] if who[row] >= 0 else None
                if limit is not None and limit.key == ("at_least" if upper else "at_most"):
                    continue
                shown[row] = at[row]
                if limit is not None:
                    by[int(row)] = _source(limit)
    return shown, by


def _source(limit: Limit) -> str:
    return f"{limit.source} ({limit.date.isoformat()})"


def _text_limits(frame: pd.DataFrame, sku: Sku) -> dict[int, str]:
    columns = [f"expected_{breach}_by" for breach in BREACHES if f"expected_{breach}_by" in frame.columns]
    return {
        int(row): _source(sku.all_limits[index])
        for column in reversed(columns)
        for row, index in enumerate(frame[column])
        if index >= 0 and sku.all_limits[index].key not in LIMIT_KEYS
    }
