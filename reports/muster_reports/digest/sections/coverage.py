"""How long ago the nodes in service passed each stage."""

from __future__ import annotations

import datetime

from muster_reports.digest.facts import SERVING, Facts, Node, Section, when
from muster_reports.text import plural

ORDER = 6
TITLE = "Coverage"
NEVER = datetime.datetime.min.replace(tzinfo=datetime.UTC)
WEEK = datetime.timedelta(days=7)


def section(facts: Facts) -> Section | None:
    """Returns how many nodes in service passed each stage within a week, and the stalest."""
    serving = [node for node in facts.nodes.values() if node.state in SERVING]
    if not serving:
        return None
    passed = [node for node in serving if node.last_pass]
    fresh = [node for node in passed if node.last_pass and facts.until - node.last_pass <= WEEK]
    stale = sorted(serving, key=lambda node: (node.last_pass or NEVER, node.name))
    return Section(
        TITLE,
        f"{len(fresh)} of {plural(len(serving), 'node')} in service passed each stage in the last 7 days. "
        "WARN counts as passed. The stalest:",
        ("node", "rack", "each stage passed since"),
        tuple(_row(node) for node in stale[:5]),
        columns=("node", "rack", "each stage passed since"),
        behind=tuple(_row(node) for node in stale),
    )


def _row(node: Node) -> tuple[str, ...]:
    return node.name, node.rack or "none", when(node.last_pass) if node.last_pass else "never"
