"""One node's result against the fleet: the sweep's own functions, for the rows of one frame of the judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from muster_criteria.fleet.budget import NODE_RULES
from muster_criteria.fleet.cells import Cells
from muster_criteria.fleet.comparisons import Comparison, Derivation
from muster_criteria.fleet.distances import Distances, distances
from muster_criteria.fleet.explained import slopes_of
from muster_criteria.fleet.keyed import INDEX_UNIT, Codes, Numbers, keyed
from muster_criteria.fleet.readings import labels_of, labels_text, readings_of, together
from muster_criteria.fleet.references import References
from muster_criteria.fleet.thresholds import Thresholds
from muster_criteria.fleet.verdicts import Ruled, ruled
from muster_criteria.sku_files.limits import kind_of
from muster_criteria.stage.rows import Row

FLEET_PROBE = "fleet"
"""The probe of rows that no probe measured: family indices, and a node's own level."""
NOW = "this"
"""The run of the result being judged, beside repeats of the same visit."""


REFERENCE_COLUMNS = ("peers_median", "peers_count", "peers_distance", "history_median", "drift")
"""What the frame tells of a row's references; distances are shares, positive where the row is above."""
REFERENCE_COLUMNS_OF = {"peers": (("peers_median", "peers_distance"),), "drift": (("history_median", "drift"),)}


Runs = Mapping[int, tuple[float, ...]]
"""Position of a row → what each run gave for it: its own result first."""


@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
    """What the fleet says of one result's rows. ``rows``: the result's, then those made for the fleet's rules.

    ``columns``: for the frame, aligned with ``rows``. ``runs``: what each run gave, for the rows with several.
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
    told = [position for position, row in enumerate(rows) if _usable(row)]
    readings = readings_of(
        [rows[position] for position in told],
        node=node,
        at=0.0,
        run=NOW,
        sku=sku,
        environment=environment,
        zone=references.zone,
    )
    if references.repeats is not None:
        readings = together([readings, references.repeats])
    snapshot, budget = references.snapshot, references.budget
    cells, slopes = Cells(snapshot.cells), slopes_of(snapshot.slopes)
    measured = distances(keyed(readings, comparisons), cells, slopes, budget.siblings_min)
    of = measured.readings
    thresholds = Thresholds(snapshot, budget, of.skus, of.catalogue)
    rules = ruled(measured, references.history, thresholds, at_least=-np.inf)
    return _Table(rows, np.array(told, dtype=np.int64), measured, rules, comparisons).compared()


def _usable(row: Row) -> bool:
    return row.value is not None and not row.refused and bool(np.isfinite(row.value))


class _Table:
    """Lays what the rules say of readings out over the judge's rows."""

    def __init__(
        self,
        rows: Sequence[Row],
        told: Codes,
        measured: Distances,
        rules: Sequence[Ruled],
        comparisons: Sequence[Comparison],
    ) -> None:
        self._rows = list(rows)
        self._measured, self._rules, self._comparisons = measured, rules, comparisons
        of = measured.readings
        self._at: dict[tuple[str, str, str, str], int] = {}
        for position in told:
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
        placed = [(rule, *self._positions(rule)) for rule in self._rules]  # before counting: this may make rows
        columns = {name: np.full(len(self._rows), np.nan) for name in REFERENCE_COLUMNS}
        for rule, said, at in placed:
            columns |= self._columns(rule, said, at)
            for expected, distance in REFERENCE_COLUMNS_OF.get(rule.rule, ()):
                columns[expected][at] = rule.expected[said]
                columns[distance][at] = self._worse(rule, at, said) * rule.share[said]
            if rule.rule == "peers":
                columns["peers_count"][at] = rule.visits[said]
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

    def _columns(self, rule: Ruled, said: Codes, at: Codes) -> dict[str, Numbers]:
        number = {id(each): float(position) for position, each in enumerate(self._comparisons)}
        of = self._measured.readings
        by = np.array([number[id(of.catalogue[series].comparison)] for series in of.series[rule.reading[said]]])
        worse, found = self._worse(rule, at, said), {}
        for breach, margin in (("fail", rule.fail[said]), ("warn", rule.retest[said])):
            share = rule.share[said]
            threshold = rule.threshold[said] if breach == "fail" else share + margin
            says = np.isfinite(margin)
            for suffix, values in (
                ("", margin),
                ("_at", rule.expected[said] * (1.0 + worse * threshold)),
                ("_by", by),
                ("_expected", rule.expected[said]),
                ("_share", share),
                ("_count", rule.visits[said]),
                ("_repeats", rule.repeats[said]),
                ("_acquitted", rule.acquitted[said]),
            ):
                column = np.full(len(self._rows), np.nan)
                column[at[says]] = values[says]
                found[f"{rule.rule}_{breach}{suffix}"] = column
        return found

    def _worse(self, rule: Ruled, at: Codes, said: Codes) -> Numbers:
        """+1 where more is worse; a family's index and a node's level fall where things get worse."""
        of = self._measured.readings
        higher = [of.catalogue[series].comparison.worse == "higher" for series in of.series[rule.reading[said]]]
        made = [self._rows[position].probe == FLEET_PROBE and rule.rule not in NODE_RULES for position in at]
        return np.where(np.array(higher, dtype=bool) & ~np.array(made, dtype=bool), 1.0, -1.0)

    def _positions(self, rule: Ruled) -> tuple[Codes, Codes]:
        """(elements of the rule, positions of their rows); what only an earlier run measured has no row, and no say."""
        of = self._measured.readings
        said, found = [], []
        for element, reading in enumerate(rule.reading):
            series, device = of.catalogue[of.series[reading]], of.devices[of.device[reading]]
            if rule.rule in NODE_RULES:
                level = float(self._measured.level[reading])
                at = self._place("node", f"{series.key[1]}_level", series.key[2], level, "level")
            else:
                at = self._at.get((device, *series.key[1:]), -1)
            if at >= 0:
                said.append(element)
                found.append(at)
        return np.array(said, dtype=np.int64), np.array(found, dtype=np.int64)
