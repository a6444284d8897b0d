"""Mean time between interruptions and mean time to failure of nodes in service, with intervals."""

from __future__ import annotations

from scipy.stats import chi2

from muster_reports.digest.facts import SERVING, Facts, Move, Section, when

ORDER = 3
CONFIDENCE = 0.9


def section(facts: Facts) -> Section | None:
    """Returns the node-hours in service for each withdrawal, and until a node's first failed test."""
    hours = sum(facts.hours_in(SERVING).values())
    if not hours:
        return None
    withdrawn = facts.withdrawals()
    first: dict[str, Move] = {}
    for move in withdrawn:
        if move.failed:
            first.setdefault(move.node, move)
    until_failure = sum(facts.hours_in(SERVING, {name: move.at for name, move in first.items()}).values())
    return Section(
        "Interruptions",
        "How long a node serves on average until it is withdrawn for any fault (MTBI), and until its first withdrawal "
        f"for a failed test (MTTF). With {100 * CONFIDENCE:.0f} % confidence the true mean lies in the interval:",
        ("", "times", "node-hours", "mean", "interval"),
        (
            ("between interruptions (MTBI)", *_mean(len(withdrawn), hours)),
            ("to a failed test (MTTF)", *_mean(len(first), until_failure)),
        ),
        columns=("node", "at", "from", "to", "for a failed test", "reason"),
        behind=tuple(
            (move.node, when(move.at), move.before, move.after, "yes" if move.failed else "no", move.reason)
            for move in withdrawn
        ),
    )


def _mean(events: int, hours: float) -> tuple[str, ...]:
    """Events, exposure, mean, and the exact Poisson interval.

    Garwood 1936: events n in an exposure T have the limits chi2(α/2, 2n)/2T and chi2(1-α/2, 2n+2)/2T.
    """
    tail = (1 - CONFIDENCE) / 2 if events else 1 - CONFIDENCE
    at_least = 2 * hours / chi2.ppf(1 - tail, 2 * events + 2)
    if not events:
        return "0", f"{hours:,.0f}", "none seen", f"at least {at_least:,.0f} h"
    at_most = 2 * hours / chi2.ppf(tail, 2 * events)
    return str(events), f"{hours:,.0f}", f"{hours / events:,.0f} h", f"{at_least:,.0f} to {at_most:,.0f} h"
