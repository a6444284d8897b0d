"""How often a node failed in service soon after a test that can see the fault had passed it."""

from __future__ import annotations

import dataclasses

from muster_reports.digest import tables
from muster_reports.digest.facts import Facts, Section

ORDER = 9
TITLE = "Escapes"


def section(facts: Facts) -> Section | None:
    """Returns a row for each level, stage and group of faults that has an escape."""
    made = tables.escapes(facts.escapes)
    return made and dataclasses.replace(
        made,
        columns=("node", "group of faults", "failed", "level", "stage", "passed", "in run"),
        behind=tuple(facts.escaped),
    )
