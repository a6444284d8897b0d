"""Failed nodes by what is suspected, by rack and by SKU: the most frequent first."""

from __future__ import annotations

import collections

from muster_reports.digest.facts import Facts, Section
from muster_reports.text import plural

ORDER = 2
ROWS = 8


def section(facts: Facts) -> Section | None:
    """Returns a Pareto table of the nodes with a critical finding; each node counts once in a row."""
    failed = {fault.node for fault in facts.faults if fault.node in facts.nodes}
    if not failed:
        return Section("Failed", "No node failed a test.")
    groups: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for fault in facts.faults:
        if node := facts.nodes.get(fault.node):
            for group in (("suspected", fault.part), ("rack", node.rack or "none"), ("SKU", node.sku)):
                groups[group].add(fault.node)
    ranked = sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))[:ROWS]
    return Section(
        "Failed",
        f"{plural(len(failed), 'node')} failed a test.",
        ("by", "", "nodes", "for example"),
        tuple((kind, name, str(len(nodes)), min(nodes)) for (kind, name), nodes in ranked),
        tuple(len(nodes) / len(ranked[0][1]) for _, nodes in ranked),
        command="muster node list --state quarantine",
    )
