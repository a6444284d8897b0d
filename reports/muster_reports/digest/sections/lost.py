"""Node-hours lost to failures, tests, queueing and repair."""

from __future__ import annotations

from muster_reports.digest import numbers, tables
from muster_reports.digest.facts import Facts, Section

ORDER = 5


def section(facts: Facts) -> Section | None:
    """Returns what nodes that had been in production lost, by cause."""
    return tables.lost(numbers.by_sku(facts))
