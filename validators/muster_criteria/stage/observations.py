"""Observations: every judged row with its limits, for reports and records."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from muster_criteria.kinds import LIMIT_KINDS
from muster_criteria.model import Observation
from muster_criteria.sku_files.figures import SCALE
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.fleet_findings import fleet_source
from muster_criteria.stage.frame import Frame
from muster_criteria.stage.rules import BREACHES, FLEET_KINDS


def _showing(side: str) -> tuple[str, ...]:
    """The kinds of rules that give the bound shown in reports on this side: the first that applies."""
    shown = [kind for kind in LIMIT_KINDS.values() if kind.bounds]
    own = [kind.rule for kind in shown if kind.side == side and not kind.among_itself and kind.section == "limits"]
    exact = [kind.rule for kind in shown if kind.side == "exact" and kind.section == "limits"]
    siblings = [kind.rule for kind in shown if kind.side == side and kind.among_itself]
    return (*own, *exact, "expected", *siblings, "expected_devices", *FLEET_KINDS)


LOWER, UPPER = _showing("lower"), _showing("upper")

_COLUMNS = ("probe", "metric", "device", "unit", "text", "labels", "samples", "note")


def observations_of(frame: Frame, broken_rows: Collection[int], sku: Sku) -> tuple[Observation, ...]:
    """One observation for each row, in the frame's order; ``ok`` where it is usable and breaks no rule."""
    floors, sources = _shown(frame, LOWER, sku, upper=False)
    ceilings, ceiling_by = _shown(frame, UPPER, sku, upper=True)
    for more in (ceiling_by, _text_limits(frame, sku)):
        sources = {**more, **sources}
    broken = set(broken_rows)
    columns: dict[str, list[Any]] = {name: frame[name].tolist() for name in _COLUMNS}
    numbers = {"value": frame["value"], "spread": frame["spread"], "floor": floors, "ceiling": ceilings}
    columns |= {name: _numbers(column) for name, column in numbers.items()}
    columns["source"] = [sources.get(at, "") for at in range(len(frame))]
    columns["ok"] = [usable and at not in broken for at, usable in enumerate(frame["usable"].tolist())]
    return tuple(map(Observation, *(columns[field.name] for field in dataclasses.fields(Observation))))


def _numbers(column: npt.NDArray[np.float64]) -> list[float | None]:
    """The numbers of a column, None where there is none."""
    found = column.astype(object)
    found[~np.isfinite(column)] = None
    return list(found.tolist())


def _shown(
    frame: Frame, kinds: tuple[str, ...], sku: Sku, *, upper: bool
) -> tuple[npt.NDArray[np.float64], dict[int, str]]:
    """Returns (each row's shown floor or ceiling, {row: its source})."""
    shown, limits = np.full(len(frame), np.nan), sku.all_limits
    by: dict[int, str] = {}
    for breach in BREACHES:
        for kind in kinds:
            column = f"{kind}_{breach}"
            if column not in frame.columns:
                continue
            at, who = frame[f"{column}_at"], frame[f"{column}_by"]
            if (kind, breach) == ("ceiling", "invalid"):
                # A physical peak is far from what healthy devices reach: no bound unless broken.
                peak = np.array([each.unit.removesuffix("/GHz") in SCALE for each in limits])
                at = np.where(peak[who] & ~(frame[column] < 0.0), np.nan, at)
            if kind in FLEET_KINDS:
                above = at > frame[f"{column}_expected"]
                rows = np.flatnonzero(np.isnan(shown) & np.isfinite(at) & (above == upper))
                sources = [fleet_source(kind, breach, each) for each in sku.programme.compare] if rows.size else []
                by |= {row: sources[int(who[row])] for row in rows.tolist()}
            else:
                rows = np.flatnonzero(np.isnan(shown) & ~np.isnan(at))
                if kind == "expected" and rows.size:
                    other = "lower" if upper else "upper"
                    rows = rows[[limits[of].kind.side != other for of in who[rows].tolist()]]
                of_limit = {of: _source(limits[of]) for of in set(who[rows].tolist()) if of >= 0}
                by |= {row: of_limit[of] for row, of in zip(rows.tolist(), who[rows].tolist(), strict=True) if of >= 0}
            shown[rows] = at[rows]
    return shown, by


def _source(limit: Limit) -> str:
    return f"{limit.source} ({limit.date.isoformat()})"


def _text_limits(frame: Frame, sku: Sku) -> dict[int, str]:
    columns = [f"expected_{breach}_by" for breach in BREACHES if f"expected_{breach}_by" in frame.columns]
    limits = sku.all_limits
    return {
        row: _source(limits[index])
        for column in reversed(columns)
        for row, index in enumerate(frame[column].tolist())
        if index >= 0 and limits[index].kind.section == "inventory"
    }
