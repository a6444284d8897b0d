"""How many spares a job of all nodes in service needs, and what the qualified ones are enough for."""

from __future__ import annotations

from muster_reports.digest import tables
from muster_reports.digest.facts import Facts, Section

ORDER = 10


def section(facts: Facts) -> Section | None:
    """Returns rows for each SKU with nodes in service."""
    return tables.spares(facts.pools)
