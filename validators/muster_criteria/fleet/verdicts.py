"""The fleet's rules: each reading's distances against their thresholds.

``judge_readings`` is the only way from readings to results of rules, for one node's stage and for a whole fleet.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.fleet import budget
from muster_criteria.fleet.peers.distances import Distances, distances, own_changes
from muster_criteria.fleet.peers.history import History, Past
from muster_criteria.fleet.peers.snapshot import Snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.keyed import Codes, Keyed, Numbers, firsts, keyed
from muster_criteria.fleet.thresholds import Thresholds


@dataclasses.dataclass(frozen=True, eq=False)
class RuleResult:
    """Results of one rule, an element for each (node, device, series) that it applies to.

    ``reading``: position in ``Distances.readings`` of the worst repeat. ``share``: its distance, adverse positive.
    ``fail``: margin as a share; negative fails the device. ``retest``: margin; negative is an outlier, which may need a
    second reading. ``threshold``: the distance beyond which it fails, alone or only together with a repeat.
    ``expected``: in unit (for node rules: relative to the peers). ``cleared``: of several readings only one was an
    outlier. ``foreign``: most peers run another stack, so nothing fails.
    """

    rule: str
    reading: Codes
    share: Numbers
    repeats: Codes
    fail: Numbers
    retest: Numbers
    threshold: Numbers
    expected: Numbers
    visits: Codes
    cleared: npt.NDArray[np.bool_]
    foreign: npt.NDArray[np.bool_]


def judge_readings(
    readings: pd.DataFrame,
    comparisons: Sequence[Comparison],
    snapshot: Snapshot,
    history: History | None,
    *,
    at_least: float = -math.inf,
) -> tuple[Distances, list[RuleResult]]:
    """Distances of the readings (see ``readings.as_readings``), and the results of every rule.

    ``at_least``: only readings at this distance or beyond it, as a share; −∞: all.
    """
    measured = distances(keyed(readings, comparisons), snapshot.lookup, snapshot.slope_of)
    thresholds = Thresholds(snapshot, measured.readings.skus, measured.readings.catalogue)
    return measured, apply_rules(measured, history, thresholds, at_least=at_least)


def apply_rules(
    measured: Distances, history: History | None, thresholds: Thresholds, *, at_least: float
) -> list[RuleResult]:
    """Every rule over every reading at the distance ``at_least`` or beyond it (−∞: over all)."""
    readings, sign = measured.readings, measured.readings.sign
    usual, level = measured.usual, np.where(np.isfinite(measured.level), measured.level, 1.0)
    counts = measured.peers_count
    uncertain = np.sqrt(1.0 + np.pi / 2.0 / np.maximum(counts, 1))  # a median of few peers is itself uncertain
    foreign = measured.foreign
    few = np.zeros(len(readings), dtype=np.int64)
    past = _enough(history.past(readings)) if history is not None else None
    rules = _Rules(readings, thresholds, at_least, None if past is None else np.isfinite(past.median))
    found = [
        rules.of("peers", measured.peers, usual, counts, uncertain, foreign=foreign),
        rules.of("siblings", measured.siblings, usual * level, measured.siblings_count),
    ]
    one_each = _first_of(readings.siblings_of, np.isfinite(measured.level))
    ones = np.ones(len(readings))
    found.append(
        rules.of(
            "node_peers", sign * (measured.level - 1.0), ones, few, only=one_each, foreign=np.isnan(measured.own_level)
        )
    )
    if history is None or past is None:
        return found
    change, common = own_changes(measured.relative / past.median, readings.siblings_of)
    found.append(rules.of("drift", sign * (change - 1.0), usual * level * past.median * common, past.visits))
    of_node = _enough(history.past(readings.take(one_each), node_level=True))
    usually, visits = np.full(len(readings), np.nan), np.zeros(len(readings), dtype=np.int64)
    usually[one_each], visits[one_each] = of_node.median, of_node.visits
    drift = sign * (measured.own_level * common / usually - 1.0)  # one device's change is not the node's
    found.append(rules.of("node_drift", drift, usually, visits, only=one_each))
    return found


def _enough(past: Past) -> Past:
    enough = (past.visits >= budget.VISITS_MIN) & (past.median > 0.0)
    return dataclasses.replace(past, median=np.where(enough, past.median, np.nan))


def _first_of(groups: Codes, known: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Codes:
    """The position of the first reading of each group that is ``known``."""
    where = np.flatnonzero(known)
    return where[firsts(groups[where])]


class _Rules:
    """Applies one rule after the other to the same readings. ``has_past``: of which devices (None: of none)."""

    def __init__(
        self, readings: Keyed, thresholds: Thresholds, at_least: float, has_past: npt.NDArray[np.bool_] | None
    ) -> None:
        self._readings, self._thresholds, self._at_least = readings, thresholds, at_least
        self._has_past = np.zeros(len(readings), dtype=np.bool_) if has_past is None else has_past
        self._items = pd.factorize(readings.item)[0] if readings.repeated else np.empty(0, dtype=np.int64)

    def of(
        self,
        rule: str,
        distance: Numbers,
        expected: Numbers,
        visits: Codes,
        uncertain: Numbers | None = None,
        only: Codes | None = None,
        foreign: npt.NDArray[np.bool_] | None = None,
    ) -> RuleResult:
        """Applies one rule. ``only``: the readings it is about (default: all). ``uncertain`` widens thresholds by a
        factor.

        ``foreign``: readings that cannot fail, since their usual values are another stack's.
        """
        reading, share, second, repeats = self._worst(distance, only)
        sku, series = self._readings.sku[reading], self._readings.series[reading]
        wider = 1.0 if uncertain is None else uncertain[reading]
        single = np.maximum(budget.EFFECT_MIN, self._single(rule, reading) * wider)
        # One reading shows the least effect that counts, the other that it was not chance.
        rare = self._thresholds.second(rule, repeats, sku, series) * wider
        double = np.maximum(rare - second, budget.EFFECT_MIN - share)
        fail = np.where(repeats > 1, np.fmin(single - share, double), single - share)
        apart = np.zeros(len(reading), dtype=np.bool_) if foreign is None else foreign[reading]
        fail = np.where(apart, np.inf, fail)
        limit = np.where((double < 0.0) & ~(share > single), np.maximum(budget.EFFECT_MIN, rare), single)
        outlier = np.maximum(budget.RETEST_MIN, self._thresholds.outlier(rule)[sku, series] * wider)
        return RuleResult(
            rule,
            reading,
            share,
            repeats,
            fail,
            outlier - share,
            limit,
            expected[reading],
            visits[reading],
            (repeats > 1) & (fail >= 0.0) & ~(second > outlier),
            apart,
        )

    def _single(self, rule: str, reading: Codes) -> Numbers:
        """Returns the threshold of one reading; for the peers' rule it depends on whether the device has a past."""
        sku, series = self._readings.sku[reading], self._readings.series[reading]
        with_past = self._thresholds.critical(rule)[sku, series]
        if rule != "peers":
            return with_past
        without = self._thresholds.critical(rule, has_past=False)[sku, series]
        return np.where(self._has_past[reading], with_past, without)

    def _worst(self, distance: Numbers, only: Codes | None) -> tuple[Codes, Numbers, Numbers, Codes]:
        """(position, distance) of the worst reading of each item, the second worst distance, and how many there are."""
        if only is not None or not self._readings.repeated:
            known = np.flatnonzero(distance >= self._at_least) if only is None else only
            known = known[distance[known] >= self._at_least]
            return known, distance[known], np.full(len(known), np.nan), np.ones(len(known), dtype=np.int64)
        known = np.flatnonzero(np.isfinite(distance))
        order = known[np.lexsort((known, -distance[known], self._items[known]))]
        starts = np.flatnonzero(np.diff(self._items[order], prepend=-1))
        repeats = np.diff(starts, append=len(order))
        share = distance[order[starts]]
        runner_up = np.minimum(starts + 1, max(len(order) - 1, 0))
        second = np.where(repeats > 1, distance[order[runner_up]], np.nan)
        kept = share >= self._at_least
        return order[starts][kept], share[kept], second[kept], repeats[kept]
