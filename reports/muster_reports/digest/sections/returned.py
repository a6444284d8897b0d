"""Nodes that went back to their vendor."""

from __future__ import annotations

import collections

from muster_reports.digest import numbers
from muster_reports.digest.facts import Facts, Section, when
from muster_reports.text import plural

ORDER = 4
TITLE = "RMA"


def section(facts: Facts) -> Section | None:
    """Returns for each vendor the nodes that went to RMA in the period, for which parts, and those that are there."""
    sent = [move for move in facts.moves if move.after == "rma" and move.node in facts.nodes]
    there = collections.Counter(node.vendor for node in facts.nodes.values() if node.state == "rma")
    went: dict[str, set[str]] = collections.defaultdict(set)
    for move in sent:
        went[move.vendor].add(move.node)
    parts: dict[str, list[str]] = collections.defaultdict(list)
    for each in numbers.returned(facts):
        parts[each.vendor].append(f"{each.part} {each.nodes}")
    if not sent and not there:
        return None
    present = {(node.vendor, name) for name, node in facts.present.items()}
    all_of = collections.Counter(vendor for vendor, _ in present | {(move.vendor, move.node) for move in sent})
    vendors = sorted(set(went) | set(there), key=lambda vendor: (-len(went[vendor]), vendor))
    return Section(
        TITLE,
        f"{plural(sum(map(len, went.values())), 'node')} went to a vendor; at a vendor now: {sum(there.values())}.",
        ("vendor", "sent", "there now", "of its nodes", "suspected"),
        tuple(
            (vendor, str(len(went[vendor])), str(there[vendor]), str(all_of[vendor]), ", ".join(parts[vendor]))
            for vendor in vendors
        ),
        columns=("node", "vendor", "suspected", "at", "reason"),
        behind=tuple((move.node, move.vendor, move.part, when(move.at), move.reason) for move in sent)
        + tuple((node.name, node.vendor, "", "there now", "") for node in facts.nodes.values() if node.state == "rma"),
    )
