"""Nodes that failed although their test before had passed: what a test missed, or what broke in between."""

from __future__ import annotations

from muster_reports.digest.facts import Facts, Run, Section
from muster_reports.text import duration, plural

ORDER = 6
PASSED = frozenset({"PASS", "WARN"})
ROWS = 10


def section(facts: Facts) -> Section | None:
    """Returns each FAIL whose node's run before ended well within the period, the soonest after it first."""
    before: dict[str, Run] = {}
    found = []
    for run in sorted(facts.runs, key=lambda run: run.ended_at):
        last = before.get(run.node)
        if run.verdict == "FAIL" and last is not None and last.verdict in PASSED and run.node in facts.nodes:
            found.append(((run.started_at - last.ended_at).total_seconds(), run, last))
        before[run.node] = run
    if not found:
        return None
    found.sort(key=lambda each: each[0])
    return Section(
        "Failed after a pass",
        f"{plural(len(found), 'node')} failed although the test before had passed:",
        ("node", "after", "passed in", "failed in", "found"),
        tuple((run.node, duration(gap), last.run_id, run.run_id, run.headline) for gap, run, last in found[:ROWS]),
        command="muster runs show RUN",
    )
