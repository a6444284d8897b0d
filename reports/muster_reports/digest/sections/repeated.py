"""Nodes that failed in service again and again while their parts stayed, and those that are marked as lemons."""

from __future__ import annotations

from muster_reports.digest.facts import Facts, Offender, Section, when
from muster_reports.text import plural

ORDER = 9
TITLE = "Repeat offenders"
ROWS = 10
HEAD = ("node", "failures", "of", "the last", "score", "mark")


def section(facts: Facts) -> Section | None:
    """Returns the nodes with two failures or more in the year, the likeliest to fail next first."""
    if not facts.offenders:
        return None
    marked = sum(bool(each.mark) for each in facts.offenders)
    return Section(
        TITLE,
        f"{plural(len(facts.offenders), 'node')} failed in service more than once in the year and kept the parts, or "
        f"are marked as lemons ({marked}); the score counts failures, each weighing less by the month "
        "(`muster node lemon` marks a node):",
        HEAD,
        tuple(_row(each) for each in facts.offenders[:ROWS]),
        columns=HEAD,
        behind=tuple(_row(each) for each in facts.offenders),
    )


def _row(of: Offender) -> tuple[str, ...]:
    last = when(of.last) if of.last else ""
    return of.node, str(of.times), of.groups, last, f"{of.score:.2f}", of.mark
