"""What the fleet showed of the chance that a stage finds a fault, compared with that of simulated faults."""

from __future__ import annotations

from muster_reports.digest.facts import Facts, Section

ORDER = 10
TITLE = "Chances of tests"


def section(facts: Facts) -> Section | None:
    """Returns a row for each group of faults and stage of which the fleet found or missed one."""
    if not facts.chances:
        return None
    return Section(
        TITLE,
        "How likely a stage finds a fault that is there, as the choice of idle tests assumes it: simulated faults, and "
        "this fleet's found and missed ones of a year:",
        ("group of faults", "stage", "found", "missed", "simulated", "assumed", "90 % interval"),
        tuple(
            (
                each.group, each.stage, str(each.found), str(each.missed), f"{each.prior:.2f}", f"{each.chance:.2f}",
                f"{each.low:.2f} to {each.high:.2f}",
            )
            for each in facts.chances
        ),
    )  # fmt: skip
