"""Availability, and node-hours in each state."""

from __future__ import annotations

import dataclasses

from muster_reports.digest import numbers, tables
from muster_reports.digest.facts import OUT, SERVING, Facts, Section

ORDER = 5
TITLE = "Node-hours"


def section(facts: Facts) -> Section | None:
    """Returns the share of node-hours in each state."""
    made = tables.node_hours(numbers.by_sku(facts))
    serving, out = facts.hours_in(SERVING), facts.hours_in(OUT)
    return made and dataclasses.replace(
        made,
        columns=("node", "hours in service", "withdrawn"),
        behind=tuple(
            (name, f"{serving.get(name, 0.0):.1f}", f"{out.get(name, 0.0):.1f}") for name in sorted(facts.nodes)
        ),
    )
