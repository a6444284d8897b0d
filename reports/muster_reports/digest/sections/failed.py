"""Failed nodes by suspected part, rack, SKU, vendor and firmware: the most frequent first."""

from __future__ import annotations

import collections

from muster_reports.digest.facts import UNKNOWN, Facts, Fault, Node, Section
from muster_reports.text import plural

ORDER = 2
TITLE = "Failed"
ROWS = 3
"""Of each kind, the most frequent."""


def section(facts: Facts) -> Section | None:
    """Returns a Pareto table of the nodes with a critical finding; each node counts once in a row."""
    failed = {fault.node for fault in facts.faults if fault.node in facts.nodes}
    if not failed:
        return Section(TITLE, "No node failed a test.")
    alike: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for each in facts.present.values():
        for trait in _traits(each, each):
            alike[trait].add(each.name)
    kinds: dict[str, dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    for fault in facts.faults:
        if fault.node in failed:
            kinds["suspected"][fault.part].add(fault.node)
            for kind, value in _traits(facts.nodes[fault.node], fault):
                kinds[kind][value].add(fault.node)
    rows, bars = [], []
    for kind, groups in kinds.items():
        for value, nodes in sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))[:ROWS]:
            # A node that failed with a trait that it no longer has counts among the nodes with it.
            of = "" if kind == "suspected" else f" of {len(alike[kind, value] | nodes)}"
            rows.append((kind, value, f"{len(nodes)}{of}", min(nodes)))
            bars.append(len(nodes) / len(failed))
    return Section(
        TITLE,
        f"{plural(len(failed), 'node')} failed a test. A row counts those with what it names, of all nodes with it:",
        ("by", "", "failed", "for example"),
        tuple(rows),
        tuple(bars),
        columns=("node", "suspected", "device", "run", "rack", "SKU", "vendor"),
        behind=tuple(
            (fault.node, fault.part, fault.device, fault.run_id, node.rack, node.sku, fault.vendor)
            for fault in facts.faults
            if (node := facts.nodes.get(fault.node))
        ),
    )


def _traits(node: Node, machine: Node | Fault) -> list[tuple[str, str]]:
    """(kind, value) of what nodes that fail may have in common. ``machine``: the node now, or as it failed."""
    firmware = sorted(machine.versions.items()) or [("firmware", UNKNOWN)]
    return [("rack", node.rack or "none"), ("SKU", node.sku), ("vendor", machine.vendor), *firmware]
