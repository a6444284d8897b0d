"""One node's result against the fleet: results of the fleet's rules as columns of the judge's frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from muster_criteria.devices import kind_of
from muster_criteria.fleet.budget import NODE_RULES
from muster_criteria.fleet.peers.distances import Distances
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.series.comparisons import Comparison, Derivation
from muster_criteria.fleet.series.keyed import INDEX_UNIT, Codes, Numbers
from muster_criteria.fleet.series.readings import readings_of, together
from muster_criteria.fleet.verdicts import RuleResult, judge_readings
from muster_criteria.labels import labels_of, labels_text
from muster_criteria.rows import Row

FLEET_PROBE = "fleet"
"""The probe of rows that are computed here: family indices, and a node's own level."""
NOW = "this"
"""The run of the result being judged, beside repeats of the same visit."""


REFERENCE_COLUMNS = ("peers_median", "peers_count", "peers_distance", "history_median", "drift")
"""The frame's columns for a row's references; distances are shares, positive where the row is above."""
REFERENCE_COLUMNS_OF = {"peers": (("peers_median", "peers_distance"),), "drift": (("history_median", "drift"),)}


Runs = Mapping[int, tuple[float, ...]]
"""Position of a row → its value in each run, the judged result's first."""


@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
    """One result compared with the fleet. ``rows``: the result's, then those made for the fleet's rules.

    ``columns``: for the frame, aligned with ``rows``. ``runs``: the values of each run, for rows with several.
    """

    rows: tuple[Row, ...]
    columns: Mapping[str, Numbers]
    runs: Runs


def derived(rows: Sequence[Row], derivations: Sequence[Derivation]) -> list[Row]:
    """The rows that these derivations make of others, of the same device; labels are the numerator's.

    What a row is divided by carries the same labels, or none at all. Nothing is made of a row in another unit.
    """
    known = {(row.metric, row.device, row.labels): row for row in rows if row.value is not None and not row.refused}
    made = []
    for each in derivations:
        for (metric, device, labels), row in known.items():
            per = known.get((each.per, device, labels)) or known.get((each.per, device, ()))
            if (metric, kind_of(device), row.unit) != (each.of, each.device, each.of_unit):
                continue
            if per is None or per.unit != each.per_unit or not per.value:
                continue
            value = each.times * float(row.value or 0.0) / float(per.value) ** each.power
            note = f"{each.of} by {each.per}"
            made.append(
                dataclasses.replace(row, metric=each.metric, unit=each.unit, value=value, spread=None, note=note)
            )
    return made


def compare(
    rows: Sequence[Row],
    comparisons: Sequence[Comparison],
    references: References,
    *,
    node: str,
    sku: str,
    environment: Mapping[str, str | None],
) -> Compared:
    """Judge a result's rows by the fleet; see ``Compared``."""
    usable = [position for position, row in enumerate(rows) if _usable(row)]
    readings = readings_of(
        [rows[position] for position in usable],
        node=node,
        at=0.0,
        run=NOW,
        sku=sku,
        environment=environment,
        zone=references.zone,
    )
    if references.repeats is not None:
        readings = together([readings, references.repeats])
    measured, results = judge_readings(
        readings, comparisons, references.snapshot, references.history, references.budget
    )
    return _Table(rows, np.array(usable, dtype=np.int64), measured, results, comparisons).compared()


def _usable(row: Row) -> bool:
    return row.value is not None and not row.refused and bool(np.isfinite(row.value))


class _Table:
    """Lays results of rules about readings out over the judge's rows."""

    def __init__(
        self,
        rows: Sequence[Row],
        usable: Codes,
        measured: Distances,
        results: Sequence[RuleResult],
        comparisons: Sequence[Comparison],
    ) -> None:
        self._rows = list(rows)
        self._measured, self._results, self._comparisons = measured, results, comparisons
        of = measured.readings
        self._at: dict[tuple[str, str, str, str], int] = {}
        for position in usable:
            row = rows[position]
            self._at[row.device, row.metric, labels_text(row.labels), row.unit] = int(position)
        for reading in np.flatnonzero(of.row < 0):
            series = of.catalogue[of.series[reading]]
            what = "given" if series.given else "index"
            self._place(of.devices[of.device[reading]], series.key[1], series.key[2], float(of.value[reading]), what)

    def _place(self, device: str, metric: str, labels: str, value: float, what: str) -> int:
        """The position of such a made row; it is made where it is not there yet."""
        key = (device, metric, labels, INDEX_UNIT)
        if key not in self._at:
            note = {
                "index": "1 − the median of its metrics' distances from the peers",
                "given": "the family's index without what the other metric explains of it",
                "level": "relative to the peers",
            }
            self._at[key] = len(self._rows)
            self._rows.append(
                Row(FLEET_PROBE, metric, device, labels_of(labels), INDEX_UNIT, value, None, 1, None, note[what])
            )
        return self._at[key]

    def compared(self) -> Compared:
        """The columns of all rules."""
        placed = [(rule, *self._positions(rule)) for rule in self._results]  # before counting: this may make rows
        columns = {name: np.full(len(self._rows), np.nan) for name in REFERENCE_COLUMNS}
        for rule, elements, at in placed:
            columns |= self._columns(rule, elements, at)
            for expected, distance in REFERENCE_COLUMNS_OF.get(rule.rule, ()):
                columns[expected][at] = rule.expected[elements]
                columns[distance][at] = self._worse(rule, at, elements) * rule.share[elements]
            if rule.rule == "peers":
                columns["peers_count"][at] = rule.visits[elements]
        return Compared(tuple(self._rows), columns, self._runs())

    def _runs(self) -> Runs:
        of = self._measured.readings
        repeated = pd.Series(of.item).duplicated(keep=False).to_numpy()
        found: dict[int, tuple[float, ...]] = {}
        for reading in np.flatnonzero(repeated):  # this result's readings stand before those of other runs
            series, device = of.catalogue[of.series[reading]], of.devices[of.device[reading]]
            at = self._at.get((device, *series.key[1:]), -1)
            if at >= 0:
                found[at] = (*found.get(at, ()), float(of.value[reading]))
        return found

    def _columns(self, rule: RuleResult, elements: Codes, at: Codes) -> dict[str, Numbers]:
        number = {id(each): float(position) for position, each in enumerate(self._comparisons)}
        of = self._measured.readings
        by = np.array([number[id(of.catalogue[series].comparison)] for series in of.series[rule.reading[elements]]])
        worse, found = self._worse(rule, at, elements), {}
        for breach, margin in (("fail", rule.fail[elements]), ("warn", rule.retest[elements])):
            share = rule.share[elements]
            threshold = rule.threshold[elements] if breach == "fail" else share + margin
            known = np.isfinite(margin)
            for suffix, values in (
                ("", margin),
                ("_at", rule.expected[elements] * (1.0 + worse * threshold)),
                ("_by", by),
                ("_expected", rule.expected[elements]),
                ("_share", share),
                ("_count", rule.visits[elements]),
                ("_repeats", rule.repeats[elements]),
                ("_cleared", rule.cleared[elements]),
            ):
                column = np.full(len(self._rows), np.nan)
                column[at[known]] = values[known]
                found[f"{rule.rule}_{breach}{suffix}"] = column
        return found

    def _worse(self, rule: RuleResult, at: Codes, elements: Codes) -> Numbers:
        """+1 where more is worse; a family's index and a node's level fall where things get worse."""
        of = self._measured.readings
        higher = [of.catalogue[series].comparison.worse == "higher" for series in of.series[rule.reading[elements]]]
        made = [self._rows[position].probe == FLEET_PROBE and rule.rule not in NODE_RULES for position in at]
        return np.where(np.array(higher, dtype=bool) & ~np.array(made, dtype=bool), 1.0, -1.0)

    def _positions(self, rule: RuleResult) -> tuple[Codes, Codes]:
        """(elements of the rule, positions of their rows); what only an earlier run measured has no row and is left
        out."""
        of = self._measured.readings
        elements, found = [], []
        for element, reading in enumerate(rule.reading):
            series, device = of.catalogue[of.series[reading]], of.devices[of.device[reading]]
            if rule.rule in NODE_RULES:
                level = float(self._measured.level[reading])
                at = self._place("node", f"{series.key[1]}_level", series.key[2], level, "level")
            else:
                at = self._at.get((device, *series.key[1:]), -1)
            if at >= 0:
                elements.append(element)
                found.append(at)
        return np.array(elements, dtype=np.int64), np.array(found, dtype=np.int64)
