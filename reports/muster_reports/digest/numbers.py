"""The numbers that managers ask for, defined once: the digest, the Fleet page, metrics and the CLI show these. Pure."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from muster_criteria.counts import CONFIDENCE, rate_limits
from muster_reports.digest.facts import OUT, SERVING, Escapes, Facts, Jobs, Pool, Repair

LOST = {
    "failures": ("quarantine", "triage"),
    "repair": ("repair", "rma"),
    "tests": ("intake", "burn_in", "validation", "cluster_validation", "revalidation"),
    "queueing": ("registered", "qualified"),
}
"""By cause, the states in which a node that has been in production does no work. ``failures``: withdrawn, and no
repair has begun; ``queueing``: back, and waiting for a test, a person or its scheduler."""
TAIL = 0.9
"""The quantile that is shown as the tail of repair times."""


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean time between ``events`` in ``hours``, with the exact interval of its Poisson rate (90 %, in hours).

    ``most``: None without events, since nothing bounds the mean from above then.
    """

    events: int
    hours: float
    least: float
    most: float | None

    @property
    def mean(self) -> float | None:
        """Hours; None without events."""
        return self.hours / self.events if self.events else None


@dataclasses.dataclass(frozen=True)
class RepairTimes:
    """``times``: how often nodes left service for a fault; ``median_s``, ``tail_s``: seconds until half, and until
    ``TAIL``, of them served again (None: not known yet); ``still``: how many are out, without retired ones.
    """

    times: int
    still: int
    median_s: float | None
    tail_s: float | None


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The numbers of the nodes of one SKU; "": of all.

    ``hours``: node-hours in each state, without retired nodes. ``lost``: node-hours of nodes that had been in
    production, by the causes of ``LOST``; ``worked``: those in production.
    """

    sku: str
    nodes: int
    hours: Mapping[str, float]
    interruptions: Mean
    failures: Mean
    repairs: RepairTimes
    lost: Mapping[str, float]
    worked: float

    @property
    def availability(self) -> float | None:
        """Node-hours in service over those in service and withdrawn (0 to 1); None if there are neither."""
        serving, out = (sum(self.hours.get(state, 0.0) for state in states) for states in (SERVING, OUT))
        return serving / (serving + out) if serving + out else None


@dataclasses.dataclass(frozen=True)
class Returned:
    """How many nodes went to a vendor for a suspected part."""

    vendor: str
    part: str
    nodes: int


@dataclasses.dataclass(frozen=True)
class FleetNumbers:
    """The numbers of real or simulated nodes in a period, of all first, then by SKU. Repairs and escapes: of a year.
    ``pools``, ``jobs``: what the nodes in service need and are enough for, by SKU.
    """

    since: datetime.datetime
    until: datetime.datetime
    simulated: bool
    skus: tuple[Numbers, ...]
    returned: tuple[Returned, ...]
    escapes: tuple[Escapes, ...]
    pools: tuple[Pool, ...]
    jobs: tuple[Jobs, ...]


def of_fleet(facts: Facts, *, simulated: bool) -> FleetNumbers:
    """Returns the numbers of all of these nodes, and of each SKU."""
    return FleetNumbers(
        facts.since, facts.until, simulated, tuple(by_sku(facts)), tuple(returned(facts)), tuple(facts.escapes),
        tuple(facts.pools), tuple(facts.jobs),
    )  # fmt: skip


def by_sku(facts: Facts) -> list[Numbers]:
    """Returns the numbers of all nodes, then those of each SKU in order of names."""
    skus = sorted({node.sku for node in facts.nodes.values()})
    spent, after = facts.sku_hours(), facts.sku_hours(facts.served)
    first = facts.first_failures()
    until = facts.hours_in(SERVING, first)
    withdrawn = collections.Counter(move.node for move in facts.withdrawals())
    made = []
    for sku in ("", *skus):
        names = {name for name, node in facts.nodes.items() if sku in ("", node.sku)}
        hours, later = (_summed(of, [sku] if sku else skus) for of in (spent, after))
        hours.pop("retired", None)
        made.append(
            Numbers(
                sku, len(names & facts.present.keys()), hours,
                mean(sum(withdrawn[name] for name in names), sum(hours.get(state, 0.0) for state in SERVING)),
                mean(len(names & first.keys()), sum(hours for name, hours in until.items() if name in names)),
                repair_times([each for each in facts.repairs if each.node in names], facts.until),
                {cause: sum(later.get(state, 0.0) for state in states) for cause, states in LOST.items()},
                later.get("production", 0.0),
            )
        )  # fmt: skip
    return made


def mean(events: int, hours: float) -> Mean:
    """Returns the mean time between events, with the exact Poisson interval (Garwood, 1936)."""
    fewest, most = rate_limits(events, max(hours, 1e-9), CONFIDENCE)
    return Mean(events, hours, 1.0 / most, 1.0 / fewest if fewest else None)


def repair_times(repairs: Sequence[Repair], until: datetime.datetime) -> RepairTimes:
    """Returns median and tail by Kaplan and Meier (1958): a node that is still out, or was retired, is censored."""
    over = [(each.back - each.out).total_seconds() for each in repairs if each.back is not None]
    lasting = [((each.gone or until) - each.out).total_seconds() for each in repairs if each.back is None]
    median, tail = (_within(over, lasting, share) for share in (0.5, TAIL))
    still = sum(each.back is None and each.gone is None for each in repairs)
    return RepairTimes(len(repairs), still, median, tail)


def returned(facts: Facts) -> list[Returned]:
    """Returns the nodes that went to RMA in the period by vendor and suspected part, the most first."""
    sent = {(move.vendor, move.part, move.node) for move in facts.moves if move.after == "rma"}
    counts = collections.Counter((vendor, part) for vendor, part, node in sent if node in facts.nodes)
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return [Returned(vendor, part, count) for (vendor, part), count in ranked]


def _within(over: Sequence[float], lasting: Sequence[float], share: float) -> float | None:
    if not over:
        return None
    import numpy as np  # heavy: not where a DAG file is parsed
    from scipy.stats import CensoredData, ecdf

    known = ecdf(CensoredData(uncensored=over, right=lasting)).cdf
    reached = np.flatnonzero(known.probabilities >= share - 1e-9)
    return float(known.quantiles[reached[0]]) if len(reached) else None


def _summed(hours: Mapping[str, Mapping[str, float]], skus: Sequence[str]) -> dict[str, float]:
    total: collections.Counter[str] = collections.Counter()
    for sku in skus:
        total.update(hours.get(sku, {}))
    return {state: spent for state, spent in total.items() if spent > 0}
