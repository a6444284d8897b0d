"""What a job can expect of the nodes in service: time between failures, when to save, and the time that trains."""

from __future__ import annotations

from muster_reports.digest import tables
from muster_reports.digest.facts import Facts, Section

ORDER = 11


def section(facts: Facts) -> Section | None:
    """Returns rows for each SKU with nodes in service."""
    return tables.jobs(facts.jobs)
