"""The long frame that is judged: a row per device × metric × labels, and for each rule the margin by which it holds.

Any number of cases of one SKU and stage lie in one frame, one after the other (column ``case``), since what is computed
column-wise costs the same for one as for hundreds. Columns: those of ``rows.Row``, kind, usable; limited: whether a
limit of the SKU is about the row, even where it cannot judge what was reported; siblings_median, others_median,
siblings_count; peers_median (NaN without a fleet to compare with); and for each rule ``<rule>``: its margin
(negative: broken, NaN: not applicable), ``<rule>_at``: the threshold in the row's unit, ``<rule>_by``: the SKU's limit,
or the programme's comparison for the fleet's rules and for what is plausible.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.devices import kind_of
from muster_criteria.fleet.series.comparisons import Comparison, Worse
from muster_criteria.fleet.series.keyed import medians, others_medians
from muster_criteria.fleet.single import PEERS_MEDIAN
from muster_criteria.kinds.kind import Seen, Times
from muster_criteria.labels import Labels
from muster_criteria.rows import NOT_COUNTED, PRESENCE, Row
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import source_units
from muster_criteria.stage import plausible
from muster_criteria.stage.rules import RULES, Rule

Column = npt.NDArray[Any]
Numbers = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]


class Entry(Mapping[str, Any]):
    """One row of a frame, by column."""

    def __init__(self, columns: Mapping[str, Column], position: int) -> None:
        self._columns, self._position = columns, position

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._position]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """Columns of one length."""

    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.columns["case"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def row(self, position: int) -> Entry:
        """The row at this position."""
        return Entry(self.columns, position)

    def part(self, first: int, end: int) -> Frame:
        """The rows from ``first`` to before ``end``, numbered from 0."""
        return Frame({name: column[first:end] for name, column in self.columns.items()})

    def parts(self, count: int) -> list[Frame]:
        """The frame of each of so many cases."""
        ends = np.searchsorted(self.columns["case"], np.arange(count + 1)).tolist()
        return [self.part(first, end) for first, end in itertools.pairwise(ends)]

    def margins(self, rules: Sequence[Rule]) -> pd.DataFrame:
        """The margins of these rules."""
        return pd.DataFrame({rule.column: self.columns[rule.column] for rule in rules})

    def applicable(self) -> tuple[Rule, ...]:
        """The rules that apply to any row."""
        return tuple(
            rule for rule in RULES if rule.column in self.columns and not np.isnan(self.columns[rule.column]).all()
        )


def build_frame(
    rows: Sequence[Row],
    sku: Sku,
    stage: str,
    fleet: Mapping[str, Numbers] | None = None,
    *,
    cases: Positions | None = None,
) -> Frame:
    """The frame of these rows under this SKU's limits for the stage, in the rows' order.

    ``fleet``: the columns of the fleet's rules (see ``fleet.single``), where there is one to compare with. ``cases``:
    the number of each row's case, ascending (default: all are of one).
    """
    case = np.zeros(len(rows), dtype=np.intp) if cases is None else cases
    applications, mixed, limited = _applications(rows, sku, stage)
    columns = _plain(rows, case, mixed) | {"limited": limited}
    columns |= _siblings(columns)
    columns |= dict(fleet) if fleet is not None else {PEERS_MEDIAN: np.full(len(rows), np.nan)}
    margins = _Margins(columns)
    limits = sku.all_limits
    for index, positions in applications:
        margins.apply(limits[index], index, positions)
    margins.expected_devices()
    margins.plausible(sku.programme.compare, columns[PEERS_MEDIAN])
    return Frame(columns | margins.columns())


def _applications(
    rows: Sequence[Row], sku: Sku, stage: str
) -> tuple[list[tuple[int, Positions]], dict[int, str], Column]:
    """Which limit judges which rows; the rows whose unit is not the limit's or the programme's (position → why); and
    for each row, whether any limit is about it.

    Decided once per distinct (metric, kind, labels, unit), however many devices there are.
    """
    groups: dict[tuple[str, str, Labels, str], list[int]] = {}
    for position, row in enumerate(rows):
        groups.setdefault((row.metric, kind_of(row.device), row.labels, row.unit), []).append(position)
    applications: list[tuple[int, Positions]] = []
    mixed: dict[int, str] = {}
    limited = np.zeros(len(rows), dtype=np.bool_)
    units = source_units(sku.programme)
    of_metric: dict[str, list[tuple[int, Limit]]] = {}
    for index, limit in enumerate(sku.all_limits):
        if not limit.stages or stage in limit.stages:
            of_metric.setdefault(limit.metric, []).append((index, limit))
    for (metric, kind, labels, unit), members in groups.items():
        if (wanted := units.get((metric, kind), unit)) != unit:
            mixed |= dict.fromkeys(members, f"reported in {unit}, but the programme takes it in {wanted}")
        for index, limit in of_metric.get(metric, ()):
            if not limit.applies_to(metric, kind, dict(labels)):
                continue
            limited[members] = True
            if limit.kind.takes(limit, unit):
                applications.append((index, np.array(members, dtype=np.intp)))
            else:
                why = f"reported in {unit}, but the SKU file judges it in {limit.unit}"
                mixed |= dict.fromkeys(members, why)
    return applications, mixed, limited


def _plain(rows: Sequence[Row], case: Positions, mixed: Mapping[int, str]) -> dict[str, Column]:
    def objects(values: Sequence[Any]) -> Column:
        return np.fromiter(values, dtype=object, count=len(values))

    value = np.array([np.nan if row.value is None else row.value for row in rows], dtype=np.float64)
    text = objects([row.text for row in rows])
    note = objects([row.note for row in rows])
    refused = np.array([row.refused for row in rows], dtype=np.bool_)
    for position, why in mixed.items():
        if not refused[position]:
            value[position], text[position], note[position], refused[position] = np.nan, None, why, True
    return {
        "case": case,
        "probe": objects([row.probe for row in rows]),
        "metric": objects([row.metric for row in rows]),
        "device": objects([row.device for row in rows]),
        "kind": objects([kind_of(row.device) for row in rows]),
        "labels": objects([row.labels for row in rows]),
        "unit": objects([row.unit for row in rows]),
        "value": value,
        "text": text,
        "samples": np.array([row.samples for row in rows], dtype=np.int64),
        "spread": np.array([np.nan if row.spread is None else row.spread for row in rows], dtype=np.float64),
        "note": note,
        "refused": refused,
        "usable": np.isfinite(value) | np.array([each is not None for each in text], dtype=np.bool_),
    }


def _siblings(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Medians of a measurement over the case's devices of that kind, with and without the device, and their number."""
    names = ("case", "probe", "metric", "kind", "labels", "unit")
    number: dict[tuple[Any, ...], int] = {}
    keys = zip(*(columns[name].tolist() for name in names), strict=True)
    group = np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)
    median, count = medians(columns["value"], group, len(number))
    others, _ = others_medians(columns["value"], group, len(number))
    return {"siblings_median": median[group], "others_median": others, "siblings_count": count[group]}


class _Margins:
    """The columns of all rules, filled limit by limit. Where two limits meet on a row, the tighter one counts."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._values: Numbers = columns["value"]
        self._margin: dict[str, Numbers] = {}
        self._at: dict[str, Numbers] = {}
        self._by: dict[str, npt.NDArray[np.int64]] = {}

    def apply(self, limit: Limit, index: int, positions: Positions) -> None:
        """Let one limit judge the rows at ``positions``."""
        at, margin = self._judge(limit, positions)
        column = self._column(Rule(limit.kind.rule, limit.breach))
        before = self._margin[column][positions]
        tighter = ~np.isnan(margin) & (np.isnan(before) | (margin < before))
        chosen = positions[tighter]
        self._margin[column][chosen] = margin[tighter]
        self._at[column][chosen] = at[tighter]
        self._by[column][chosen] = index

    def expected_devices(self) -> None:
        """Presence rows: a counted device must answer, and no other may."""
        rows = np.flatnonzero(self._columns["metric"] == PRESENCE)
        of = self._columns["case"][rows]
        # Where none answers at all it is the driver or the baseboard, not eight broken GPUs; counted under coverage.
        rows = rows[np.isin(of, of[self._values[rows] != 0.0])]
        if not rows.size:
            return
        expected = (self._columns["note"][rows] != NOT_COUNTED).astype(np.float64)
        column = self._column(Rule("expected_devices", "fail"))
        self._at[column][rows] = expected
        self._margin[column][rows] = -np.abs(self._values[rows] - expected)

    def plausible(self, comparisons: Sequence[Comparison], peers_median: Numbers) -> None:
        """Compared metrics: no value may be better than any healthy part (see ``plausible``)."""
        about = {
            (each.metric, each.device, each.unit): index
            for index, each in reversed(list(enumerate(comparisons)))
            if each.judged
        }
        keys = zip(*(self._columns[name].tolist() for name in ("metric", "kind", "unit")), strict=True)
        by = np.array([about.get(key, -1) for key in keys], dtype=np.int64)
        rows = np.flatnonzero((by >= 0) & ~np.isnan(self._values))
        if not rows.size:
            return
        usual = plausible.usual_of(self._columns["siblings_median"], self._columns["siblings_count"], peers_median)
        column = self._column(Rule("plausible", "invalid"))
        higher = np.array([each.worse == "higher" for each in comparisons])[by[rows]]
        ways: tuple[tuple[Worse, Positions], ...] = (("higher", rows[higher]), ("lower", rows[~higher]))
        for worse, some in ways:
            at, margin = plausible.margins(self._values[some], usual[some], worse)
            self._at[column][some], self._margin[column][some], self._by[column][some] = at, margin, by[some]

    def columns(self) -> dict[str, Column]:
        """The three columns of each rule that applies to any row."""
        columns: dict[str, Column] = {}
        for column, margin in self._margin.items():
            if not np.isnan(margin).all():
                columns |= {column: margin, f"{column}_at": self._at[column], f"{column}_by": self._by[column]}
        return columns

    def _column(self, rule: Rule) -> str:
        if rule.column not in self._margin:
            size = len(self._values)
            self._margin[rule.column], self._at[rule.column] = np.full(size, np.nan), np.full(size, np.nan)
            self._by[rule.column] = np.full(size, -1, dtype=np.int64)
        return rule.column

    def _judge(self, limit: Limit, positions: Positions) -> tuple[Numbers, Numbers]:
        """(threshold, margin) of each row at ``positions``; NaN where the limit does not apply."""
        names = ("value", "spread", "text", "siblings_median", "others_median", "siblings_count")
        seen = Seen(
            **{name: self._columns[name][positions] for name in names},
            referred=lambda times: self._referred(times, positions),
        )
        at = limit.kind.at(limit, seen)
        return at, limit.kind.margin(limit, at, seen)

    def _referred(self, times: Times, positions: Positions) -> Numbers:
        """The measurement that ``times`` refers to, for each row; NaN where there is none, or more than one."""
        wanted = set(times.labels.items())
        found: dict[tuple[int, str], float] = {}
        for at in np.flatnonzero((self._columns["metric"] == times.metric) & self._columns["usable"]).tolist():
            if wanted <= set(self._columns["labels"][at]):
                key = (int(self._columns["case"][at]), str(self._columns["device"][at]))
                found[key] = np.nan if key in found else float(self._values[at])
        of = zip(self._columns["case"][positions].tolist(), self._columns["device"][positions].tolist(), strict=True)
        return np.array(
            [found.get((case, "node" if times.device == "node" else device), np.nan) for case, device in of],
            dtype=np.float64,
        )
