"""How long nodes stay out of service after a fault: median and tail, by SKU and by group of fault."""

from __future__ import annotations

import collections
import dataclasses

from muster_reports.digest import numbers, tables
from muster_reports.digest.facts import Facts, Repair, Section, when

ORDER = 5
TITLE = "Repairs"


def section(facts: Facts) -> Section | None:
    """Returns a row for all repairs of the year, for each SKU where there are several, and each group of faults."""
    made = tables.repairs(numbers.by_sku(facts))
    groups: dict[str, list[Repair]] = collections.defaultdict(list)
    for repair in facts.repairs:
        groups[repair.group].append(repair)
    ranked = sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))
    rows = [tables.repair_row(group, numbers.repair_times(of, facts.until)) for group, of in ranked]
    return made and dataclasses.replace(
        made,
        rows=(*made.rows, *rows),
        columns=("node", "group of faults", "out", "back"),
        behind=tuple(
            (each.node, each.group, when(each.out), when(each.back) if each.back else "") for each in facts.repairs
        ),
    )
