"""Mean time between interruptions of nodes in service, with its interval."""

from __future__ import annotations

from scipy.stats import chi2

from muster_reports.digest.facts import SERVING, Facts, Section
from muster_reports.text import plural

ORDER = 3
CONFIDENCE = 0.9


def section(facts: Facts) -> Section | None:
    """Returns the node-hours in service for each withdrawal, with the exact Poisson interval.

    Garwood 1936: events n in an exposure T have the limits chi2(α/2, 2n)/2T and chi2(1-α/2, 2n+2)/2T.
    """
    hours = sum(facts.hours_in(SERVING).values())
    events = sum(move.withdrawn and move.node in facts.nodes for move in facts.moves)
    if not hours:
        return None
    tail = (1 - CONFIDENCE) / 2
    most = chi2.ppf(1 - tail, 2 * events + 2) / (2 * hours)
    at_least = 1 / most
    if not events:
        sentence = (
            f"No node was withdrawn in {hours:,.0f} node-hours in service: with {100 * CONFIDENCE:.0f} % confidence at "
        )
        return Section("Interruptions", f"{sentence}least {at_least:,.0f} node-hours from one to the next.")
    at_most = 2 * hours / chi2.ppf(tail, 2 * events)
    return Section(
        "Interruptions",
        f"{plural(events, 'withdrawal')} from service in {hours:,.0f} node-hours: one in {hours / events:,.0f} "
        f"({100 * CONFIDENCE:.0f} % interval {at_least:,.0f} to {at_most:,.0f}).",
        command="muster node history NODE",
    )
