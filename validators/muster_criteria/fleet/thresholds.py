"""Thresholds: the budget of false alarms and the peers' tails, as a distance beyond which each series convicts."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from muster_criteria.fleet.budget import Budget, cusum_limit
from muster_criteria.fleet.keyed import Codes, Numbers, Series
from muster_criteria.fleet.snapshot import Snapshot
from muster_criteria.fleet.tails import PROBABILITIES, threshold


@dataclasses.dataclass(frozen=True, eq=False)
class Thresholds:
    """For each rule: matrices over (SKU, series) of distances as shares; infinite where too little is known to convict.

    They are what chance makes rare, however small; the least effect that counts is policy, and comes on top. NaN where
    the rule says nothing at all, since no scale was learned.
    """

    snapshot: Snapshot
    budget: Budget
    skus: Sequence[str]
    catalogue: Sequence[Series]

    @functools.cache  # noqa: B019  (lives as long as one sweep)
    def probability(self, rule: str, *, confirmed: bool = False, has_past: bool = True) -> Numbers:
        """What the rule may spend on each series, by single or by confirmed readings; see ``Budget.part``."""
        together = {"low": self.snapshot.low, "lottery": self.snapshot.lottery}
        return np.array(
            [
                self.budget.part(rule, spread, each.weight / together[spread], confirmed=confirmed, has_past=has_past)
                if together[spread := each.comparison.spread]
                else 0.0
                for each in self.catalogue
            ]
        )

    @functools.cached_property
    def cusum_limits(self) -> Numbers:
        """The CUSUM's limit h for each series, in σ."""
        spent = self.probability("cusum").tolist()
        distinct = {p: cusum_limit(p, self.budget.cusum_k) if p else math.inf for p in set(spent)}
        return np.array([distinct[p] for p in spent])

    @functools.cached_property
    def _scales(self) -> dict[tuple[str, ...], float]:
        columns = ("rule", "sku", "kind", "metric", "labels", "unit", "scale")
        rows = zip(*(self.snapshot.scales[name] for name in columns), strict=True)
        return {tuple(row[:-1]): float(row[-1]) for row in rows}

    @functools.cached_property
    def _tails(self) -> dict[tuple[str, int, str, str, str], Numbers]:
        frame = self.snapshot.tails
        columns = ("rule", "repeats", "sku", "kind", "metric")
        keys = zip(*(frame[name] for name in columns), strict=True)
        tables = frame[[f"q{at}" for at in range(len(PROBABILITIES))]].to_numpy(dtype=np.float64)
        return {(str(r), int(n), str(s), str(k), str(m)): tables[at] for at, (r, n, s, k, m) in enumerate(keys)}

    def tail(self, rule: str, repeats: int, sku: str, series: Series) -> Numbers | None:
        """The tail of this metric's pool, else that of its kind; None where neither was learned.

        The milder of two readings strays no further than either, whatever so small a sample says of it.
        """
        kind, metric = series.key[:2]
        pools = ([self._tails.get((rule, count, sku, kind, pool)) for pool in (metric, "")] for count in (1, repeats))
        found = [next((tail for tail in pool if tail is not None), None) for pool in pools]
        known = [tail for tail in found if tail is not None]
        return np.min(known, axis=0) if known else None

    @functools.cache  # noqa: B019
    def scale(self, rule: str) -> Numbers:
        """The rule's scale for each (SKU, series), as a share; NaN where none was learned."""
        return np.array(
            [[self._scales.get((rule, sku, *each.key), np.nan) for each in self.catalogue] for sku in self.skus]
        ).reshape(len(self.skus), len(self.catalogue))

    @functools.cache  # noqa: B019
    def critical(self, rule: str, repeats: int = 1, *, has_past: bool = True) -> Numbers:
        """What healthy parts exceed as rarely as the budget allows; with ``repeats`` ≥ 2, the second worst of them."""
        pairs = repeats * (repeats - 1) // 2 if repeats > 1 else 1
        found = np.full((len(self.skus), len(self.catalogue)), np.nan)
        for row, sku in enumerate(self.skus):
            for column, series in enumerate(self.catalogue):
                tail = self.tail(rule, min(repeats, 2), sku, series)
                spend = float(self.probability(rule, confirmed=repeats > 1, has_past=has_past)[column]) / pairs
                found[row, column] = np.inf if tail is None or not spend else threshold(tail, spend)
        return np.asarray(self.scale(rule) * found)

    @functools.cache  # noqa: B019
    def odd(self, rule: str) -> Numbers:
        """What asks for a retest: a robust z beyond the budget's."""
        return np.asarray(self.scale(rule) * self.budget.retest_z)

    def second(self, rule: str, repeats: Codes, sku: Codes, series: Codes) -> Numbers:
        """As ``critical``, for the second worst of each item's ``repeats`` readings; infinite where there is one."""
        found: npt.NDArray[np.float64] = np.full(len(repeats), np.inf)
        for count in np.unique(repeats[repeats > 1]):
            chosen = repeats == count
            found[chosen] = self.critical(rule, int(count))[sku[chosen], series[chosen]]
        return found
