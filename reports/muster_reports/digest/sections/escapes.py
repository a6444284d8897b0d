"""How often a node failed in service soon after a test that can see the fault had passed it."""

from __future__ import annotations

from muster_reports.digest.facts import Facts, Section

ORDER = 9


def section(facts: Facts) -> Section | None:
    """Returns a row for each level, stage and group of faults that has an escape."""
    if not facts.escapes:
        return None
    return Section(
        "Escapes",
        "Failures in service of a year, within 30 days after a stage that can see such a fault had passed the node "
        "(`muster escapes --rows` lists them):",
        ("level", "stage", "group of faults", "escapes", "passes", "per 1,000", "90 % interval"),
        tuple(
            (
                each.level, each.stage, each.group, str(each.escapes), str(each.passes), f"{each.rate:.2f}",
                f"{each.low:.2f} to {each.high:.2f}",
            )
            for each in facts.escapes
        ),
    )  # fmt: skip
