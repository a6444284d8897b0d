"""Nodes that failed although their test before had passed: what a test missed, or what broke in between."""

from __future__ import annotations

from muster_criteria.words import duration
from muster_reports.digest.facts import Facts, Section
from muster_reports.text import plural

ORDER = 8
TITLE = "Failed after a pass"
ROWS = 10


def section(facts: Facts) -> Section | None:
    """Returns each FAIL whose node had passed its previous conclusive run, the shortest time in between first."""
    found = sorted(facts.missed(), key=lambda each: each[1].started_at - each[0].ended_at)
    if not found:
        return None
    rows = tuple(
        (run.node, duration((run.started_at - last.ended_at).total_seconds()), last.run_id, run.run_id, run.headline)
        for last, run in found
    )
    head = ("node", "after", "passed in", "failed in", "found")
    sentence = f"{plural(len(found), 'test')} failed although the node's test before had passed; the soonest after it:"
    return Section(TITLE, sentence, head, rows[:ROWS], columns=head, behind=rows)
