"""Node-hours lost to quarantine and repair, and to tests."""

from __future__ import annotations

from muster_reports.digest.facts import OUT, SERVING, Facts, Section

ORDER = 5


def section(facts: Facts) -> Section | None:
    """Returns the share of node-hours in service, withdrawn, in neither, and of all of these under test."""
    whole = facts.hours()
    if not whole:
        return None
    serving, out = facts.hours_in(SERVING), facts.hours_in(OUT)
    tested = dict.fromkeys(facts.nodes, 0.0)
    for run in facts.runs:
        if run.node in tested:
            tested[run.node] += run.tested_s / 3600
    spent = {"in service": sum(serving.values()), "withdrawn (quarantine to RMA)": sum(out.values())}
    spent["outside service (new, or waiting to return)"] = max(0.0, whole - sum(spent.values()))
    spent["of all these, under test"] = sum(tested.values())
    expected = sum(serving.values()) + sum(out.values())
    # Without the hours of new nodes, which are not expected to serve yet.
    share = 100 * sum(serving.values()) / expected if expected else 0.0
    available = f" (availability of nodes that entered service: {share:.2f} %)" if expected else ""
    return Section(
        "Node-hours",
        f"Of {whole:,.0f} node-hours{available}:",
        ("", "hours", "share"),
        tuple((name, f"{hours:,.0f}", f"{100 * hours / whole:.1f} %") for name, hours in spent.items()),
        tuple(min(1.0, hours / whole) for hours in spent.values()),
        columns=("node", "hours in service", "withdrawn", "under test"),
        behind=tuple(
            (name, f"{serving.get(name, 0.0):.1f}", f"{out.get(name, 0.0):.1f}", f"{tested[name]:.1f}")
            for name in sorted(facts.nodes)
        ),
    )
