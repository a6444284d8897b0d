"""How often a node failed in service soon after a test that can see the fault had passed it."""

from __future__ import annotations

from muster_reports.digest import tables
from muster_reports.digest.facts import Facts, Section

ORDER = 9


def section(facts: Facts) -> Section | None:
    """Returns a row for each level, stage and group of faults that has an escape."""
    return tables.escapes(facts.escapes)
