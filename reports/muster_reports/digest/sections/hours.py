"""Node-hours lost to quarantine and repair, and to tests."""

from __future__ import annotations

from muster_reports.digest.facts import OUT, SERVING, Facts, Section

ORDER = 4


def section(facts: Facts) -> Section | None:
    """Returns the share of node-hours in service, withdrawn and under test."""
    whole = sum(
        max(0.0, (facts.until - max(facts.since, node.added_at)).total_seconds() / 3600)
        for node in facts.nodes.values()
        if node.state != "retired"
    )
    if not whole:
        return None
    tested = sum(
        (run.ended_at - max(run.started_at, facts.since)).total_seconds() / 3600
        for run in facts.runs
        if run.node in facts.nodes
    )
    spent = {
        "in service": sum(facts.hours_in(SERVING).values()),
        "withdrawn (quarantine to RMA)": sum(facts.hours_in(OUT).values()),
        "in tests": tested,
    }
    return Section(
        "Node-hours",
        f"Of {whole:,.0f} node-hours:",
        ("", "hours", "share"),
        tuple((name, f"{hours:,.0f}", f"{100 * hours / whole:.1f} %") for name, hours in spent.items()),
        tuple(min(1.0, hours / whole) for hours in spent.values()),
    )
