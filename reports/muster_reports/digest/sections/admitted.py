"""New nodes in production, and how long they took from enrolment."""

from __future__ import annotations

import numpy as np

from muster_criteria.words import duration
from muster_reports.digest.facts import Facts, Section, when
from muster_reports.text import plural

ORDER = 1
TITLE = "Delivered"


def section(facts: Facts) -> Section | None:
    """Returns the delivered nodes with the median and the 95th percentile of their time to production."""
    took = sorted(
        ((at - facts.nodes[name].added_at).total_seconds(), name)
        for name, at in facts.delivered.items()
        if name in facts.nodes
    )
    if not took:
        return Section(TITLE, "No node entered production for the first time.")
    median, late = np.percentile([seconds for seconds, _ in took], [50, 95])
    return Section(
        TITLE,
        f"{plural(len(took), 'node')} entered production for the first time, from enrolment in {duration(median)} "
        f"(median), 95 % within {duration(late)}. The slowest:",
        ("node", "SKU", "took"),
        tuple((name, facts.nodes[name].sku, duration(seconds)) for seconds, name in took[::-1][:5]),
        columns=("node", "SKU", "enrolled", "in production"),
        behind=tuple(
            (name, facts.nodes[name].sku, when(facts.nodes[name].added_at), when(facts.delivered[name]))
            for _, name in took
        ),
    )
