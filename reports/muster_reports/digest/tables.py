"""The fleet's numbers as tables, for the digest and the page Numbers alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from muster_criteria.cluster.goodput import PUBLISHED, SIZES, forecast
from muster_criteria.counts import CONFIDENCE
from muster_criteria.words import duration
from muster_reports.digest.facts import WITH_RECORD, Escapes, Jobs, Pool, Section
from muster_reports.digest.numbers import FleetNumbers, Mean, Numbers, RepairTimes, Returned
from muster_reports.text import plural
from muster_reports.training_view import forecast_view, inputs_text


def tables(numbers: FleetNumbers) -> list[Section]:
    """Returns the tables that have something to show."""
    made = [
        interruptions(numbers.skus),
        node_hours(numbers.skus),
        lost(numbers.skus),
        repairs(numbers.skus),
        returned(numbers.returned),
        escapes(numbers.escapes),
        spares(numbers.pools),
        jobs(numbers.jobs),
    ]
    return [section for section in made if section is not None]


def interruptions(skus: Sequence[Numbers]) -> Section | None:
    """Mean time between interruptions and to failure."""
    if not skus or not skus[0].interruptions.hours:
        return None
    return Section(
        "Interruptions",
        "How long a node serves on average until it is withdrawn for any fault (MTBI), and until its first withdrawal "
        f"for a failed test (MTTF). With {100 * CONFIDENCE:.0f} % confidence the true mean lies in the interval:",
        ("", "times", "node-hours", "mean", "interval"),
        tuple(
            (f"{words}{_of(each)}", *_mean(figure))
            for each in _shown(skus)
            if each.interruptions.hours
            for words, figure in (
                ("between interruptions (MTBI)", each.interruptions),
                ("to a failed test (MTTF)", each.failures),
            )
        ),
    )


def node_hours(skus: Sequence[Numbers]) -> Section | None:
    """Time in each state, and availability."""
    whole = sum(skus[0].hours.values()) if skus else 0.0
    if not whole:
        return None
    available = "; ".join(
        f"{_rounded_down(100 * each.availability):.2f} %{_of(each)}"
        for each in _shown(skus)
        if each.availability is not None
    )
    ranked = sorted(skus[0].hours.items(), key=lambda each: -each[1])
    return Section(
        "Node-hours",
        f"Of {whole:,.0f} node-hours{f' (availability: {available})' if available else ''}, in each state:",
        ("state", "hours", "share"),
        tuple((state, f"{hours:,.0f}", f"{100 * hours / whole:.1f} %") for state, hours in ranked),
        tuple(min(1.0, hours / whole) for _, hours in ranked),
    )


def _rounded_down(percent: float) -> float:
    """Rounds down to hundredths, so that 100.00 % means that nothing was lost."""
    return math.floor(100.0 * percent + 1e-6) / 100.0


def lost(skus: Sequence[Numbers]) -> Section | None:
    """What nodes that had been in production lost."""
    whole = skus[0].worked + sum(skus[0].lost.values()) if skus else 0.0
    if not whole:
        return None
    rows = []
    for each in _shown(skus):
        of = each.worked + sum(each.lost.values())
        if of:
            hours = (each.worked, *each.lost.values())
            rows.append((each.sku or "all", *(f"{spent:,.0f} ({100 * spent / of:.1f} %)" for spent in hours)))
    return Section(
        "Lost node-hours",
        "Node-hours since each node was first in production: in production, withdrawn without a repair that has begun "
        "(failures), in repair, under test, and waiting to come back (queueing):",
        ("SKU", "in production", *skus[0].lost),
        tuple(rows),
    )


def repairs(skus: Sequence[Numbers]) -> Section | None:
    """Median and tail of repair times."""
    if not skus or not skus[0].repairs.times:
        return None
    times = skus[0].repairs.times
    return Section(
        "Repairs",
        f"{plural(times, 'time')} in the year a node left service for a fault. Until it served again:",
        ("", "times", "median", "90 % within", "still out"),
        tuple(repair_row(each.sku or "all", each.repairs) for each in _shown(skus) if each.repairs.times),
    )


def repair_row(what: str, times: RepairTimes) -> tuple[str, ...]:
    """A row of the table of repairs."""
    return what, str(times.times), *(_known(each) for each in (times.median_s, times.tail_s)), str(times.still)


def returned(found: Sequence[Returned]) -> Section | None:
    """Nodes that went to a vendor, by suspected part."""
    if not found:
        return None
    return Section(
        "RMA by vendor and part",
        "Nodes that went to a vendor, each once for a vendor and a part:",
        ("vendor", "suspected part", "nodes"),
        tuple((each.vendor, each.part, str(each.nodes)) for each in found),
        tuple(each.nodes / found[0].nodes for each in found),
    )


def escapes(found: Sequence[Escapes]) -> Section | None:
    """What tests let pass."""
    if not found:
        return None
    return Section(
        "Escapes",
        "Failures in service of a year, within 30 days after a stage that can see such a fault had passed the node:",
        ("level", "stage", "group of faults", "escapes", "passes", "per 1,000", "90 % interval"),
        tuple(
            (
                each.level, each.stage, each.group, str(each.escapes), str(each.passes), f"{each.rate:.2f}",
                f"{each.low:.2f} to {each.high:.2f}",
            )
            for each in found
        ),
    )  # fmt: skip


def _shown(skus: Sequence[Numbers]) -> Sequence[Numbers]:
    """The total, and each SKU if there are several."""
    return skus if len(skus) > 2 else skus[:1]


def _of(numbers: Numbers) -> str:
    return f", {numbers.sku}" if numbers.sku else ""


def _mean(of: Mean) -> tuple[str, ...]:
    """Events, exposure, mean and interval."""
    if of.mean is None or of.most is None:
        return "0", f"{of.hours:,.0f}", "none seen", f"at least {of.least:,.0f} h"
    return str(of.events), f"{of.hours:,.0f}", f"{of.mean:,.0f} h", f"{of.least:,.0f} to {of.most:,.0f} h"


def _known(seconds: float | None) -> str:
    return "not known yet" if seconds is None else duration(seconds)


def spares(pools: Sequence[Pool]) -> Section | None:
    """How many spares a job of all nodes in service needs, and what the qualified ones are enough for, by SKU."""
    if not pools:
        return None
    head = ("SKU", "in service", "failures in a year", "mean repair", "spares needed", "qualified", "enough for")
    return Section(
        "Spares",
        f"Spares with which 99 of 100 jobs of all nodes in service last {pools[0].days:g} days, from failures and "
        f"repairs of a year (mean repair: {WITH_RECORD}), and the job that the qualified nodes are enough for:",
        head,
        tuple(
            (
                pool.sku, str(pool.service), str(pool.failures), f"{pool.repair_days:.1f} days", str(pool.needed),
                str(pool.qualified), plural(pool.covers, "node"),
            )
            for pool in pools
        ),
    )  # fmt: skip


def jobs(found: Sequence[Jobs]) -> Section | None:
    """What jobs of 8 GPUs up to all nodes in service can expect, by SKU: time between failures, when to save, and the
    share of time that trains.
    """
    if not found:
        return None
    made = ". ".join(f"For {each.sku}: {'; '.join(inputs_text(each.inputs))}" for each in found)
    sentence = (
        "The expected share of its time that a job trains (ETTR) with the best interval between saves. "
        f"{made}. Published by others: {'; '.join(PUBLISHED)}."
    )
    head = ("SKU", "GPUs", "fails every", "save every", "time that trains (90 %)", "goodput, if it scales so")
    rows = tuple((each.sku, *row) for each in found for row in _forecast(each))
    return Section("Jobs", sentence, head, rows)


def _forecast(of: Jobs) -> list[tuple[str, ...]]:
    whole = of.service * of.inputs.gpus_a_node
    return [forecast_view(each) for each in forecast(of.inputs, [*(size for size in SIZES if size < whole), whole])]
