"""Compares one node's results with the fleet: results of the fleet's rules as columns of the judge's frame."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.devices import kind_of
from muster_criteria.fleet.budget import NODE_RULES
from muster_criteria.fleet.peers.distances import Distances
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.series.comparisons import Comparison, Derivation
from muster_criteria.fleet.series.keyed import INDEX_UNIT, Codes, Numbers
from muster_criteria.fleet.series.readings import as_readings, group_of, together
from muster_criteria.fleet.verdicts import RuleResult, judge_readings
from muster_criteria.labels import labels_of, labels_text
from muster_criteria.rows import Row

FLEET_PROBE = "fleet"
"""The probe of rows that are computed here: family indices, and a node's own level."""
LEVEL = "_level"
"""Ending of the name of a node's own level of a metric or index."""
PEERS_MEDIAN = "peers_median"
"""The frame's column of what is usual among a row's peers."""
NOW = "this"
"""The run of the result being judged, as opposed to repeats of the same visit."""

_NOTES = {
    "index": "1 − the median of its metrics' distances from the peers",
    "given": "the family's index without what the other metric explains of it",
    "level": "relative to the peers",
}

Runs = Mapping[int, tuple[float, ...]]
"""Position of a row → its value in each run, the judged result's first."""


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """One node's result to be compared: its ``rows``, its name in history and repeats, and its ``References``."""

    rows: Sequence[Row]
    node: str
    sku: str
    environment: Mapping[str, str | None]
    references: References


@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
    """Results compared with the fleet. ``rows``: each result's, then those made for the fleet's rules.

    ``cases``: the position of each row's subject, ascending. ``columns``: for the frame, aligned with ``rows``.
    ``runs``: the values of each run, for rows with several.
    """

    rows: tuple[Row, ...]
    cases: Codes
    columns: Mapping[str, Numbers]
    runs: Runs


def derived(rows: Sequence[Row], derivations: Sequence[Derivation]) -> list[Row]:
    """The rows that these derivations make from others of the same device; labels are the numerator's.

    The denominator has the same labels or none. Rows in another unit are ignored.
    """
    wanted = {name for each in derivations for name in (each.of, each.per)}
    known = {
        (row.metric, row.device, row.labels): row
        for row in rows
        if row.metric in wanted and row.value is not None and not row.refused
    }
    made = []
    for each in derivations:
        for (metric, device, labels), row in known.items():
            if (metric, row.unit) != (each.of, each.of_unit) or kind_of(device) != each.device:
                continue
            per = known.get((each.per, device, labels)) or known.get((each.per, device, ()))
            if per is None or per.unit != each.per_unit or not per.value:
                continue
            value = each.times * float(row.value or 0.0) / float(per.value)
            note = f"{each.of} by {each.per}"
            made.append(
                dataclasses.replace(row, metric=each.metric, unit=each.unit, value=value, spread=None, note=note)
            )
    return made


def compare(subjects: Sequence[Subject], comparisons: Sequence[Comparison]) -> Compared:
    """Compares the rows of these results with the fleet; see ``Compared``.

    All share one snapshot and history, and each is of another node.
    """
    rows = [row for each in subjects for row in each.rows]
    case = np.repeat(np.arange(len(subjects)), [len(each.rows) for each in subjects])
    usable = np.array([at for at, row in enumerate(rows) if _usable(row)], dtype=np.int64)
    readings = _readings([rows[at] for at in usable], case[usable], subjects)
    repeats = [each.references.repeats for each in subjects if each.references.repeats is not None]
    if repeats:
        readings = together([readings, *repeats])
    first = subjects[0].references
    measured, results = judge_readings(readings, comparisons, first.snapshot, first.history)
    return _Table(rows, case, usable, measured, results, comparisons, [each.node for each in subjects]).compared()


def _usable(row: Row) -> bool:
    return row.value is not None and not row.refused and math.isfinite(row.value)


def _readings(rows: Sequence[Row], case: Codes, subjects: Sequence[Subject]) -> pd.DataFrame:
    def of_case(values: Sequence[str]) -> pd.Categorical:
        names = list(dict.fromkeys(values))
        number = {name: at for at, name in enumerate(names)}
        return _coded(np.array([number[each] for each in values], dtype=np.int64)[case], names)

    texts = {labels: labels_text(labels) for labels in {row.labels for row in rows}}
    columns = {
        "node": of_case([each.node for each in subjects]),
        "device": _category([row.device for row in rows]),
        "group": of_case([group_of(each.sku, each.environment, each.references.zone) for each in subjects]),
        "sku": of_case([each.sku for each in subjects]),
        "metric": _category([row.metric for row in rows]),
        "labels": _category([texts[row.labels] for row in rows]),
        "unit": _category([row.unit for row in rows]),
        "value": np.array([row.value for row in rows], dtype=np.float64),
        "at": np.zeros(len(rows)),
        "run": _coded(np.zeros(len(rows), dtype=np.int64), [NOW]),
    }
    return as_readings(pd.DataFrame(columns))


def _category(names: Sequence[str]) -> pd.Categorical:
    number = {name: at for at, name in enumerate(dict.fromkeys(names))}
    return _coded(np.fromiter(map(number.__getitem__, names), dtype=np.int64, count=len(names)), list(number))


def _coded(codes: Codes, names: list[str]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, pd.Index(names, dtype="str"))


class _Table:
    """Lays results of rules about readings out over the judge's rows."""

    def __init__(
        self,
        rows: Sequence[Row],
        case: Codes,
        usable: Codes,
        measured: Distances,
        results: Sequence[RuleResult],
        comparisons: Sequence[Comparison],
        nodes: Sequence[str],
    ) -> None:
        self._rows, self._cases = list(rows), case.tolist()
        self._measured, self._results = measured, results
        of = measured.readings
        number, case_of = (
            {id(each): at for at, each in enumerate(comparisons)},
            {name: at for at, name in enumerate(nodes)},
        )
        self._by = np.array([number[id(each.comparison)] for each in of.catalogue] or [-1], dtype=np.float64)
        self._higher = np.array([each.comparison.worse == "higher" for each in of.catalogue] or [False])
        self._case_of = np.array([case_of.get(name, -1) for name in of.nodes] or [-1])
        items, distinct = pd.factorize(of.item)
        self._item = items.astype(np.int64)
        self._at: Codes = np.full(len(distinct), -1, dtype=np.int64)
        """Position of the row of each item; what only an earlier run measured has none."""
        own = (of.row >= 0) & (of.row < len(usable))
        self._at[self._item[own]] = usable[of.row[own]]
        made = np.flatnonzero(of.row < 0)
        for reading in made[np.sort(np.unique(self._item[made], return_index=True)[1])].tolist():
            series = of.catalogue[of.series[reading]]
            device, what = of.devices[of.device[reading]], "given" if series.given else "index"
            self._at[self._item[reading]] = self._make(reading, device, series.key[1], float(of.value[reading]), what)

    def _make(self, reading: int, device: str, metric: str, value: float, what: str) -> int:
        """Adds a row computed from others and returns its position."""
        of = self._measured.readings
        labels = labels_of(of.catalogue[of.series[reading]].key[2])
        self._rows.append(Row(FLEET_PROBE, metric, device, labels, INDEX_UNIT, value, None, 1, None, _NOTES[what]))
        self._cases.append(int(self._case_of[of.node[reading]]))
        return len(self._rows) - 1

    def compared(self) -> Compared:
        """The columns of all rules, the rows of each case together."""
        levels: dict[int, int] = {}
        placed = [(rule, *self._positions(rule, levels)) for rule in self._results]  # first: this may make rows
        self._made = np.array([row.probe == FLEET_PROBE for row in self._rows], dtype=np.bool_)
        columns = {PEERS_MEDIAN: np.full(len(self._rows), np.nan)}
        for rule, elements, at in placed:
            columns |= self._columns(rule, elements, at)
            if rule.rule == "peers":
                columns[PEERS_MEDIAN][at] = rule.expected[elements]
        cases = np.array(self._cases, dtype=np.int64)
        order = np.argsort(cases, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        return Compared(
            tuple(self._rows[at] for at in order.tolist()),
            cases[order],
            {name: column[order] for name, column in columns.items()},
            {int(place[at]): values for at, values in self._runs().items()},
        )

    def _runs(self) -> Runs:
        repeated = pd.Series(self._item).duplicated(keep=False).to_numpy()
        found: dict[int, tuple[float, ...]] = {}
        for reading in np.flatnonzero(repeated):  # a result's own readings stand before those of other runs
            at = int(self._at[self._item[reading]])
            if at >= 0:
                found[at] = (*found.get(at, ()), float(self._measured.readings.value[reading]))
        return found

    def _columns(self, rule: RuleResult, elements: Codes, at: Codes) -> dict[str, Numbers]:
        series = self._measured.readings.series[rule.reading[elements]]
        worse, found = self._worse(rule, at, elements), {}
        for breach, margin in (("fail", rule.fail[elements]), ("warn", rule.retest[elements])):
            share = rule.share[elements]
            threshold = rule.threshold[elements] if breach == "fail" else share + margin
            known = np.isfinite(margin)
            for suffix, values in (
                ("", margin),
                ("_at", rule.expected[elements] * (1.0 + worse * threshold)),
                ("_by", self._by[series]),
                ("_expected", rule.expected[elements]),
                ("_share", share),
                ("_count", rule.visits[elements]),
                ("_repeats", rule.repeats[elements]),
                ("_cleared", rule.cleared[elements]),
                ("_foreign", rule.foreign[elements]),
            ):
                column = np.full(len(self._rows), np.nan)
                column[at[known]] = values[known]
                found[f"{rule.rule}_{breach}{suffix}"] = column
        return found

    def _worse(self, rule: RuleResult, at: Codes, elements: Codes) -> Numbers:
        """+1 where more is worse; a family's index and a node's level fall where things get worse."""
        higher = self._higher[self._measured.readings.series[rule.reading[elements]]]
        made: npt.NDArray[np.bool_] = self._made[at] & (rule.rule not in NODE_RULES)
        return np.where(higher & ~made, 1.0, -1.0)

    def _positions(self, rule: RuleResult, levels: dict[int, int]) -> tuple[Codes, Codes]:
        """(elements of the rule, positions of their rows). ``levels``: positions of rows about a node's own level."""
        of = self._measured.readings
        if rule.rule not in NODE_RULES:
            at = self._at[self._item[rule.reading]]
            elements = np.flatnonzero(at >= 0)
            return elements, at[elements]
        found = []
        for reading, key in zip(rule.reading.tolist(), of.siblings_of[rule.reading].tolist(), strict=True):
            if key not in levels:
                metric = f"{of.catalogue[of.series[reading]].key[1]}{LEVEL}"
                levels[key] = self._make(reading, "node", metric, float(self._measured.level[reading]), "level")
            found.append(levels[key])
        return np.arange(len(found)), np.array(found, dtype=np.int64)
