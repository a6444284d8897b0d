"""Nodes that were withdrawn more than once, by their rate in service."""

from __future__ import annotations

import collections

from muster_reports.digest.facts import SERVING, Facts, Section, when
from muster_reports.text import plural

ORDER = 9
ROWS = 10


def section(facts: Facts) -> Section | None:
    """Returns nodes with two withdrawals or more, most for each 1,000 hours in service first."""
    times = collections.Counter(move.node for move in facts.withdrawals())
    hours = facts.hours_in(SERVING)
    repeated = [
        (count / max(hours.get(name, 0.0), 1.0) * 1000, name, count) for name, count in times.items() if count > 1
    ]
    if not repeated:
        return None
    return Section(
        "Repeat offenders",
        f"{plural(len(repeated), 'node')} left service for a fault more than once:",
        ("node", "times", "hours in service", "for each 1,000 h"),
        tuple(
            (name, str(count), f"{hours.get(name, 0.0):,.0f}", f"{rate:,.1f}")
            for rate, name, count in sorted(repeated, reverse=True)[:ROWS]
        ),
        columns=("node", "at", "from", "to", "reason"),
        behind=tuple(
            (move.node, when(move.at), move.before, move.after, move.reason)
            for move in facts.withdrawals()
            if times[move.node] > 1
        ),
    )
