"""How many spare nodes a job needs, from how often nodes fail and how long they stay away. Pure."""

from __future__ import annotations

import bisect
import dataclasses
import datetime
from collections.abc import Collection, Mapping, Sequence

from muster.model.failures import Failure
from muster.model.nodes import Node
from muster.model.states import SERVING, State
from muster.rules.service.replacing import is_free
from muster_criteria.counts import rate_limits
from muster_reports.digest.facts import RECORD_REPAIR_DAYS, RECORD_WEIGHT, Pool

ENOUGH = 0.99
"""The chance with which the spares suffice."""
APART = 1e-6
"""Correlations below are none: the beta-binomial's parameters lose their digits, and 2e-16 gave no spares."""


def spares(nodes: int, down: float, together: float, *, days: float = 0.0, repair_days: float = 1.0) -> int:
    """Returns how many spares cover a job of ``nodes`` nodes over ``days`` days in all but 1 of 100 such jobs.

    ``down``: the share of time that a node is out of service (rate · *mean* repair time). ``together``: the correlation
    of two nodes' being down, 0 if they fail independently; a fleet measures it by ``correlation``. The number down at a
    moment is beta-binomial (Skellam, 1948), since the plain binomial is too small: 12 for 256 nodes where a record of
    400 servers needed 23. A job sees as many independent moments as repairs fit into it, and one more (Bonferroni).
    Raises ValueError for shares outside 0 to 1.
    """
    if not (0.0 < down < 1.0 and 0.0 <= together < 1.0):
        raise ValueError(f"shares lie between 0 and 1, and {down:g} down or {together:g} together does not")
    from scipy import stats  # heavy: not where a DAG file is parsed

    enough = 1.0 - (1.0 - ENOUGH) / (1.0 + days / repair_days)
    if together < APART:
        return int(stats.binom.ppf(enough, nodes, down))
    scale = 1.0 / together - 1.0
    return int(stats.betabinom.ppf(enough, nodes, down * scale, (1.0 - down) * scale))


def correlation(mean: float, variance: float, nodes: int) -> float:
    """Returns how much nodes are down together, from the mean and the variance over time of how many of ``nodes`` are.

    By moments: a beta-binomial's variance is n·p·(1 − p)·(1 + (n − 1)·ρ). 0 if they vary no more than independent ones.
    """
    down = mean / nodes if nodes else 0.0
    independent = nodes * down * (1.0 - down)
    if nodes < 2 or independent <= 0.0:
        return 0.0
    return min(max((variance / independent - 1.0) / (nodes - 1), 0.0), 0.999)


@dataclasses.dataclass(frozen=True)
class Rates:
    """How nodes fail: the share of time that one is ``down``, how much nodes are down ``together``, how long a repair
    takes on average, and from how many ``failures`` of the fleet itself this is known.
    """

    down: float
    together: float
    repair_days: float
    failures: int

    @property
    def rate(self) -> float:
        """Failures of a node a day."""
        return self.down / self.repair_days

    @property
    def limits(self) -> tuple[float, float]:
        """The 90 % interval of ``rate``, from the fleet's own failures and those for which the record counts."""
        events = self.failures + RECORD_WEIGHT
        return rate_limits(events, events / self.rate)


RECORD = Rates(1.78e-4 * 24.0 * RECORD_REPAIR_DAYS, together=0.013, repair_days=RECORD_REPAIR_DAYS, failures=0)
"""Of 400 servers of 8 GPUs over 348 days (InfiniteHBD-Trace, SIGCOMM 2025): 1.78e-4 faults an hour, mean repair 5.5
days."""
SAMPLES = 1000
"""Moments of the period at which the nodes that are down are counted."""


def measured(came: Sequence[datetime.datetime], failures: Sequence[Failure], now: datetime.datetime,
             period: datetime.timedelta) -> Rates:  # fmt: skip
    """Returns the rates of nodes that ``came`` into service then, from their failures within the period until ``now``.

    The fleet's own failures are weighed with the public record. A repair that is not over counts until now.
    """
    since = now - period
    days = sum(max((now - max(at, since)).total_seconds(), 0.0) for at in came) / 86400.0
    out = [(max(each.at, since), min(each.over or now, now)) for each in failures]
    out = [(start, end) for start, end in out if end > start]
    if not days:
        return RECORD
    lost = sum((end - start).total_seconds() for start, end in out) / 86400.0
    count = len(out)
    repair_days = (RECORD_WEIGHT * RECORD.repair_days + lost) / (RECORD_WEIGHT + count)
    rate = (RECORD_WEIGHT + count) / (RECORD_WEIGHT * RECORD.repair_days / RECORD.down + days)
    own = _together(came, out, since, now)
    together = (RECORD_WEIGHT * RECORD.together + count * own) / (RECORD_WEIGHT + count)
    return Rates(min(rate * repair_days, 0.99), together, repair_days, count)


def _together(
    came: Sequence[datetime.datetime], out: Sequence[tuple[datetime.datetime, datetime.datetime]],
    since: datetime.datetime, now: datetime.datetime,
) -> float:  # fmt: skip
    import numpy as np  # heavy: not where a DAG file is parsed

    moments = np.linspace(since.timestamp(), now.timestamp(), SAMPLES)
    starts, ends, arrivals = (
        np.sort([each.timestamp() for each in times])
        for times in ([start for start, _ in out], [end for _, end in out], came)
    )
    there = np.searchsorted(arrivals, moments, side="right")
    down = np.searchsorted(starts, moments, side="right") - np.searchsorted(ends, moments, side="right")
    # A fleet grows: only while most of it was there are the counts those of one number of nodes.
    whole = there >= max(len(came) / 2.0, 1.0)
    if not whole.any():
        return 0.0
    return correlation(float(down[whole].mean()), float(down[whole].var()), round(float(there[whole].mean())))


def needed(nodes: int, rates: Rates, days: float) -> int:
    """Returns how many spares a job of ``nodes`` nodes over ``days`` days needs by these rates."""
    return spares(nodes, rates.down, rates.together, days=days, repair_days=rates.repair_days)


def covered(pool: int, most: int, rates: Rates, days: float) -> int:
    """Returns the largest job, of at most ``most`` nodes, for which ``pool`` spares suffice."""
    return bisect.bisect_right(range(1, most + 1), pool, key=lambda nodes: needed(nodes, rates, days))


def rates_of(
    nodes: Collection[Node], served: Mapping[str, datetime.datetime], failures: Sequence[Failure],
    now: datetime.datetime,
) -> Rates:  # fmt: skip
    """Returns the rates of these nodes over ``PERIOD``, without retired ones and those that never served.

    ``served``: when each first entered production: only from then on can it fail in service. ``failures``: as of
    ``pools``.
    """
    names = [node.name for node in nodes if node.state is not State.RETIRED and node.name in served]
    came = {name: served[name] for name in names}
    return measured([*came.values()], [each for each in failures if each.node in came], now, PERIOD)


JOB_DAYS = 7.0
"""How long a job lasts, by default, when its spares are counted."""
PERIOD = datetime.timedelta(days=365)
"""The period whose failures determine how many spares are needed."""


def pools(
    nodes: Collection[Node], served: Mapping[str, datetime.datetime], fell: Collection[str],
    failures: Sequence[Failure], now: datetime.datetime, days: float,
) -> list[tuple[Pool, Rates]]:  # fmt: skip
    """Returns the pool of each SKU with nodes in service, the largest first, and how its nodes fail.

    ``served``: as of ``rates_of``; ``fell``: as of ``replacing.is_free``; ``failures``: of machines that had the nodes'
    names before too, since a spare takes a place, not a machine's.
    """
    found = []
    for sku in sorted({node.sku for node in nodes}):
        of = [node for node in nodes if node.sku == sku]
        serving = sum(node.state in SERVING for node in of)
        if not serving:
            continue
        rates = rates_of(of, served, failures, now)
        qualified = sum(is_free(node, fell) for node in of)
        pool = Pool(sku, serving, qualified, rates.failures, rates.repair_days, days, needed(serving, rates, days),
                    covered(qualified, serving, rates, days))  # fmt: skip
        found.append((pool, rates))
    return sorted(found, key=lambda each: -each[0].service)
