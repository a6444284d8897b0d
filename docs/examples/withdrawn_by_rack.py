"""A section of the digest: how many nodes left service, by rack."""

from __future__ import annotations

import collections

from muster_reports.digest.facts import Facts, Section

ORDER = 20


def section(facts: Facts) -> Section | None:
    """Returns a row for each rack that a node left service in, the most first."""
    racks = collections.Counter(facts.nodes[move.node].rack or "no rack" for move in facts.withdrawals())
    if not racks:
        return None
    rows = tuple((rack, str(count)) for rack, count in racks.most_common())
    return Section("Withdrawn by rack", "Moves out of service:", ("rack", "moves"), rows)
