"""How many spares a job of all nodes in service needs, and what the qualified ones are enough for."""

from __future__ import annotations

from muster_reports.digest.facts import Facts, Section

ORDER = 10


def section(facts: Facts) -> Section | None:
    """Returns a row for each SKU of which nodes are in service."""
    if not facts.pools:
        return None
    head = ("SKU", "in service", "failures in a year", "mean repair", "spares needed", "qualified", "enough for")
    days = facts.pools[0].days
    return Section(
        "Spares",
        f"Spares with which 99 of 100 jobs of all nodes in service last {days:g} days, from failures and repairs of a "
        "year, and the job that the qualified nodes are enough for:",
        head,
        tuple(
            (
                pool.sku, str(pool.service), str(pool.failures), f"{pool.repair_days:.1f} days", str(pool.needed),
                str(pool.qualified), f"{pool.covers} nodes",
            )
            for pool in facts.pools
        ),
    )  # fmt: skip
