"""Mean time between interruptions and mean time to failure of nodes in service, with intervals."""

from __future__ import annotations

import dataclasses

from muster_reports.digest import numbers, tables
from muster_reports.digest.facts import Facts, Section, when

ORDER = 3
TITLE = "Interruptions"


def section(facts: Facts) -> Section | None:
    """Returns the node-hours in service for each withdrawal, and until a node's first failed test."""
    made = tables.interruptions(numbers.by_sku(facts))
    return made and dataclasses.replace(
        made,
        columns=("node", "at", "from", "to", "for a failed test", "reason"),
        behind=tuple(
            (move.node, when(move.at), move.before, move.after, "yes" if move.failed else "no", move.reason)
            for move in facts.withdrawals()
        ),
    )
