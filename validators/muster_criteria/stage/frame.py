"""The long frame that is judged: a row per device × metric × labels, and for each rule the margin by which it holds.

Everything is computed column-wise before Great Expectations sees it. Columns: those of ``rows.Row``, kind, usable;
share_of_floor, share_of_ceiling; siblings_median, siblings_count, siblings_distance; peers_median, peers_count,
peers_distance, history_median and drift (empty without a fleet to compare with); previous_faults (in how many earlier
runs the part failed; shown with findings, not judged); and for each rule ``<rule>``:
its margin (negative: broken, NaN: not applicable), ``<rule>_at``: the threshold in the row's unit, ``<rule>_by``:
the SKU's limit, or the programme's comparison for the fleet's rules and for what is plausible.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.devices import kind_of
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.single import REFERENCE_COLUMNS
from muster_criteria.labels import Labels
from muster_criteria.rows import PRESENCE, Row
from muster_criteria.sku_files.limits import INVENTORY_KEYS, Limit, Times
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import source_units
from muster_criteria.stage import plausible
from muster_criteria.stage.rules import RULES, Rule

Numbers = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]
NONE_BEFORE: Mapping[str, int] = types.MappingProxyType({})
"""Earlier failures by part, for a fleet in which no part failed."""


def build_frame(
    rows: Sequence[Row],
    sku: Sku,
    stage: str,
    fleet: Mapping[str, Numbers] | None = None,
    previous_faults: Mapping[str, int] = NONE_BEFORE,
) -> pd.DataFrame:
    """The frame of these rows under this SKU's limits for the stage, indexed 0…n−1 in the rows' order.

    ``fleet``: the columns of the fleet's rules (see ``fleet.single``), where there is one to compare with.
    ``previous_faults``: {device: earlier runs in which the part that sits there failed}.
    """
    applications, mixed = _applications(rows, sku, stage)
    frame = _plain(rows, mixed)
    _add_siblings(frame)
    frame["previous_faults"] = np.array([previous_faults.get(row.device, 0) for row in rows], dtype=np.int64)
    compared = dict(fleet) if fleet is not None else {name: np.full(len(rows), np.nan) for name in REFERENCE_COLUMNS}
    margins = _Margins(frame)
    for index, positions in applications:
        margins.apply(sku.all_limits[index], index, positions)
    margins.expected_devices(sku)
    margins.plausible(sku.programme.compare, compared["peers_median"])
    return pd.concat([frame, pd.DataFrame(compared, index=frame.index), margins.as_frame()], axis=1)


def _applications(rows: Sequence[Row], sku: Sku, stage: str) -> tuple[list[tuple[int, Positions]], dict[int, str]]:
    """Which limit judges which rows, and the rows whose unit is not the limit's or the programme's (position → why).

    Decided once per distinct (metric, kind, labels, unit), however many devices there are.
    """
    groups: dict[tuple[str, str, Labels, str], list[int]] = {}
    for position, row in enumerate(rows):
        groups.setdefault((row.metric, kind_of(row.device), row.labels, row.unit), []).append(position)
    applications: list[tuple[int, Positions]] = []
    mixed: dict[int, str] = {}
    units = source_units(sku.programme)
    for (metric, kind, labels, unit), members in groups.items():
        if (wanted := units.get((metric, kind), unit)) != unit:
            mixed |= dict.fromkeys(members, f"reported in {unit}, but the programme takes it in {wanted}")
        for index, limit in enumerate(sku.all_limits):
            if (limit.stages and stage not in limit.stages) or not limit.applies_to(metric, kind, dict(labels)):
                continue
            if limit.key == "spread_at_most" or limit.unit == unit:
                applications.append((index, np.array(members, dtype=np.intp)))
            else:
                why = f"reported in {unit}, but the SKU file judges it in {limit.unit}"
                mixed |= dict.fromkeys(members, why)
    return applications, mixed


def _plain(rows: Sequence[Row], mixed: dict[int, str]) -> pd.DataFrame:
    def number(position: int, row: Row) -> float:
        return np.nan if row.value is None or position in mixed else row.value

    def note(position: int, row: Row) -> str:
        return mixed.get(position, row.note)

    frame = pd.DataFrame(
        {
            "probe": pd.Series([row.probe for row in rows], dtype=object),
            "metric": pd.Series([row.metric for row in rows], dtype=object),
            "device": pd.Series([row.device for row in rows], dtype=object),
            "kind": pd.Series([kind_of(row.device) for row in rows], dtype=object),
            "labels": pd.Series([row.labels for row in rows], dtype=object),
            "unit": pd.Series([row.unit for row in rows], dtype=object),
            "value": pd.Series([number(at, row) for at, row in enumerate(rows)], dtype=np.float64),
            "text": pd.Series([None if at in mixed else row.text for at, row in enumerate(rows)], dtype=object),
            "samples": pd.Series([row.samples for row in rows], dtype=np.int64),
            "spread": pd.Series([np.nan if row.spread is None else row.spread for row in rows], dtype=np.float64),
            "note": pd.Series([note(at, row) for at, row in enumerate(rows)], dtype=object),
            "refused": pd.Series([row.refused or at in mixed for at, row in enumerate(rows)], dtype=bool),
        }
    )
    frame["usable"] = np.isfinite(frame["value"].to_numpy()) | frame["text"].notna().to_numpy()
    return frame


def _add_siblings(frame: pd.DataFrame) -> None:
    siblings = frame.groupby(["probe", "metric", "kind", "labels", "unit"], sort=False)["value"]
    frame["siblings_median"] = siblings.transform("median")
    frame["siblings_count"] = siblings.transform("count")
    with np.errstate(divide="ignore", invalid="ignore"):
        frame["siblings_distance"] = frame["value"] / frame["siblings_median"] - 1.0


class _Margins:
    """The columns of all rules, filled limit by limit. Where two limits meet on a row, the tighter one counts."""

    def __init__(self, frame: pd.DataFrame) -> None:
        size = len(frame)
        self._frame = frame
        self._values: Numbers = frame["value"].to_numpy()
        self._margin = {rule.column: np.full(size, np.nan) for rule in RULES}
        self._at = {rule.column: np.full(size, np.nan) for rule in RULES}
        self._by = {rule.column: np.full(size, -1, dtype=np.int64) for rule in RULES}

    def apply(self, limit: Limit, index: int, positions: Positions) -> None:
        """Let one limit judge the rows at ``positions``."""
        at, margin = self._judge(limit, positions)
        column = Rule("expected" if limit.key in INVENTORY_KEYS else limit.key, limit.breach).column
        before = self._margin[column][positions]
        tighter = ~np.isnan(margin) & (np.isnan(before) | (margin < before))
        chosen = positions[tighter]
        self._margin[column][chosen] = margin[tighter]
        self._at[column][chosen] = at[tighter]
        self._by[column][chosen] = index

    def expected_devices(self, sku: Sku) -> None:
        """Presence rows: a counted device must answer, and no other may."""
        rows = np.flatnonzero(self._frame["metric"].to_numpy() == PRESENCE)
        if rows.size == 0 or not self._values[rows].any():
            return  # none answers at all: driver or baseboard, not eight broken GPUs; counted under coverage
        counted = {f"gpu{slot}" for slot in range(int(sku.devices.get("gpu") or 0))}
        expected = np.array([float(device in counted) for device in self._frame["device"].to_numpy()[rows]])
        column = Rule("expected_devices", "fail").column
        self._at[column][rows] = expected
        self._margin[column][rows] = -np.abs(self._values[rows] - expected)

    def plausible(self, comparisons: Sequence[Comparison], peers_median: Numbers) -> None:
        """Compared metrics: no value may be better than any healthy part (see ``plausible``)."""
        column, usual = Rule("plausible", "invalid").column, plausible.usual_of(self._frame, peers_median)
        of = pd.MultiIndex.from_frame(self._frame[["metric", "kind", "unit"]])
        for index, each in enumerate(comparisons):
            if not each.judged:
                continue
            rows = np.flatnonzero((of == (each.metric, each.device, each.unit)) & ~np.isnan(self._values))
            at, margin = plausible.margins(self._values[rows], usual[rows], each.worse)
            self._at[column][rows], self._margin[column][rows], self._by[column][rows] = at, margin, index

    def as_frame(self) -> pd.DataFrame:
        """Shares of floor and ceiling, and the three columns of each rule that applies to any row."""
        floor = np.fmax(self._at["floor_fail"], self._at["floor_warn"])
        ceiling = np.fmin(self._at["ceiling_fail"], self._at["ceiling_warn"])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            columns: dict[str, npt.NDArray[np.generic]] = {
                "share_of_floor": self._values / floor,
                "share_of_ceiling": self._values / ceiling,
            }
        for column, margin in self._margin.items():
            if not np.isnan(margin).all():
                columns |= {column: margin, f"{column}_at": self._at[column], f"{column}_by": self._by[column]}
        return pd.DataFrame(columns, index=self._frame.index)

    def _judge(self, limit: Limit, positions: Positions) -> tuple[Numbers, Numbers]:
        """(threshold, margin) of each row at ``positions``; NaN where the limit does not apply."""
        values = self._values[positions]
        if isinstance(limit.equals, str) or limit.one_of is not None or limit.matches is not None:
            return np.full(len(positions), np.nan), self._text_margin(limit, positions)
        at = self._threshold(limit, positions)
        if limit.key == "spread_at_most":
            spread = 100.0 * self._frame["spread"].to_numpy()[positions]
            return at, np.where(np.isnan(values), np.nan, at - spread)
        if limit.key in ("floor", "at_least", "siblings_at_least"):
            return at, values - at
        if limit.key in ("ceiling", "at_most", "siblings_at_most"):
            return at, at - values
        return at, -np.abs(values - at)

    def _threshold(self, limit: Limit, positions: Positions) -> Numbers:
        value = getattr(limit, limit.key)
        if isinstance(value, Times):
            return value.times * self._referred(value, positions)
        if limit.key.startswith("siblings_"):
            enough = self._frame["siblings_count"].to_numpy()[positions] >= limit.siblings
            return np.where(enough, value * self._frame["siblings_median"].to_numpy()[positions], np.nan)
        return np.full(len(positions), float(value))

    def _referred(self, times: Times, positions: Positions) -> Numbers:
        """The measurement that ``times`` refers to, for each row; NaN where there is none, or more than one."""
        wanted = set(times.labels.items())
        frame = self._frame[(self._frame["metric"] == times.metric) & self._frame["usable"]]
        frame = frame[np.array([wanted <= set(labels) for labels in frame["labels"]], dtype=bool)]
        frame = frame[~frame["device"].duplicated(keep=False)]
        by_device = dict(zip(frame["device"], frame["value"], strict=True))
        devices = self._frame["device"].to_numpy()[positions]
        return np.array([by_device.get("node" if times.device == "node" else device, np.nan) for device in devices])

    def _text_margin(self, limit: Limit, positions: Positions) -> Numbers:
        texts = self._frame["text"].to_numpy()[positions]
        return np.array([np.nan if text is None else (0.0 if _satisfies(limit, text) else -1.0) for text in texts])


def _satisfies(limit: Limit, text: str) -> bool:
    if limit.one_of is not None:
        return text in limit.one_of
    if limit.matches is not None:
        return re.search(limit.matches, text) is not None
    return text == limit.equals
