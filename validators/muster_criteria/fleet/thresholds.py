"""Thresholds: the budget of false alarms and the peers' tails, as a distance beyond which each series fails."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from muster_criteria.fleet import budget
from muster_criteria.fleet.peers.snapshot import Snapshot
from muster_criteria.fleet.peers.tails import threshold
from muster_criteria.fleet.series.keyed import Codes, Numbers, Series

MAD_EFFICIENCY = 0.37
"""Efficiency of the MAD as an estimate of a Gaussian's scale (P. Rousseeuw and C. Croux, Alternatives to the Median
Absolute Deviation, 1993)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Thresholds:
    """For each rule: matrices over (SKU, series) of distances as shares; infinite if too little is known to fail any.

    They follow from chance alone, however small; the least effect that counts is policy and is applied in addition. NaN
    if the rule does not apply because no scale was estimated.
    """

    snapshot: Snapshot
    skus: Sequence[str]
    catalogue: Sequence[Series]

    def probability(self, rule: str, *, confirmed: bool = False, has_past: bool = True) -> Numbers:
        """Returns the rule's budget for each series, by single or by confirmed readings; see ``budget.part``."""
        together = {"low": self.snapshot.low, "varied": self.snapshot.varied}
        return np.array(
            [
                budget.part(rule, spread, each.weight / together[spread], confirmed=confirmed, has_past=has_past)
                if together[spread := each.comparison.spread]
                else 0.0
                for each in self.catalogue
            ]
        )

    def _estimated(self, rule: str, at: int) -> Numbers:
        """One figure of the rule's scales for each (SKU, series); NaN where none was estimated."""
        known, nothing = self.snapshot.scale_of, (np.nan, np.nan)
        return np.array(
            [[known.get((rule, sku, *each.key), nothing)[at] for each in self.catalogue] for sku in self.skus]
        ).reshape(len(self.skus), len(self.catalogue))

    def tail(self, rule: str, repeats: int, sku: str, series: Series) -> Numbers | None:
        """The tail of this metric's pool, else that of its kind; None if neither was estimated.

        The milder of two readings has no longer tail than either, whatever a small sample shows.
        """
        kind, metric = series.key[:2]
        known = self.snapshot.tail_of
        pools = ([known.get((rule, count, sku, kind, pool)) for pool in (metric, "")] for count in {1, repeats})
        found = [next((tail for tail in pool if tail is not None), None) for pool in pools]
        tails = [tail for tail in found if tail is not None]
        return functools.reduce(np.minimum, tails) if tails else None

    def scale(self, rule: str) -> Numbers:
        """The rule's scale for each (SKU, series), as a share; NaN where none was estimated."""
        return self._estimated(rule, 0)

    def critical(self, rule: str, repeats: int = 1, *, has_past: bool = True) -> Numbers:
        """Returns the distance that healthy parts exceed as rarely as the budget allows.

        With ``repeats`` ≥ 2: the distance that the second worst reading exceeds.
        """
        pairs = repeats * (repeats - 1) // 2 if repeats > 1 else 1
        spend = (self.probability(rule, confirmed=repeats > 1, has_past=has_past) / pairs).tolist()
        found = np.full((len(self.skus), len(self.catalogue)), np.nan)
        for row, sku in enumerate(self.skus):
            for column, series in enumerate(self.catalogue):
                tail = self.tail(rule, min(repeats, 2), sku, series)
                found[row, column] = threshold(tail, spend[column]) if tail is not None and spend[column] else np.inf
        return np.asarray(self.scale(rule) * found)

    def outlier(self, rule: str) -> Numbers:
        """The distance from which a reading is an outlier: a robust z of ``budget.RETEST_Z`` or more.

        Where parts vary, it must also be rare: by the peers' tail or, while that is unknown, by Student's t for a
        Gaussian variation whose scale is estimated from few values (a MAD of n values is as uncertain as a standard
        deviation of ``MAD_EFFICIENCY`` × n).
        """
        scale = self.scale(rule)
        found = np.asarray(scale * budget.RETEST_Z)
        if not self.snapshot.varied:
            return found
        sizes = self._estimated(rule, 1)
        for row, sku in enumerate(self.skus):
            for column, series in enumerate(self.catalogue):
                if budget.varies_by_part(rule, series.comparison.spread) and np.isfinite(sizes[row, column]):
                    spend = budget.warn_part(series.weight / self.snapshot.varied)
                    tail = self.tail(rule, 1, sku, series)
                    freedom = MAD_EFFICIENCY * sizes[row, column]
                    rare = stdtrit(freedom, 1.0 - spend) if tail is None else threshold(tail, spend)
                    found[row, column] = max(found[row, column], scale[row, column] * rare)
        return found

    def second(self, rule: str, repeats: Codes, sku: Codes, series: Codes) -> Numbers:
        """As ``critical``, for the second worst of each item's ``repeats`` readings; infinite if there is only one."""
        found: npt.NDArray[np.float64] = np.full(len(repeats), np.inf)
        for count in np.unique(repeats[repeats > 1]):
            chosen = repeats == count
            found[chosen] = self.critical(rule, int(count))[sku[chosen], series[chosen]]
        return found
