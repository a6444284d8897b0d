"""Mean time between interruptions and mean time to failure of nodes in service, with intervals."""

from __future__ import annotations

from collections.abc import Collection

from scipy.stats import chi2

from muster_reports.digest.facts import SERVING, Facts, Move, Section, when

ORDER = 3
CONFIDENCE = 0.9


def section(facts: Facts) -> Section | None:
    """Returns the node-hours in service for each withdrawal, and until a node's first failed test."""
    served = facts.hours_in(SERVING)
    if not served:
        return None
    withdrawn = facts.withdrawals()
    skus = sorted({facts.nodes[name].sku for name in served})
    rows = [*_rows(facts, set(facts.nodes), "")]
    for sku in skus if len(skus) > 1 else ():
        rows += _rows(facts, {name for name, node in facts.nodes.items() if node.sku == sku}, f", {sku}")
    return Section(
        "Interruptions",
        "How long a node serves on average until it is withdrawn for any fault (MTBI), and until its first withdrawal "
        f"for a failed test (MTTF). With {100 * CONFIDENCE:.0f} % confidence the true mean lies in the interval:",
        ("", "times", "node-hours", "mean", "interval"),
        tuple(rows),
        columns=("node", "at", "from", "to", "for a failed test", "reason"),
        behind=tuple(
            (move.node, when(move.at), move.before, move.after, "yes" if move.failed else "no", move.reason)
            for move in withdrawn
        ),
    )


def _rows(facts: Facts, nodes: Collection[str], of: str) -> list[tuple[str, ...]]:
    """MTBI and MTTF of these nodes."""
    withdrawn = [move for move in facts.withdrawals() if move.node in nodes]
    first: dict[str, Move] = {}
    for move in withdrawn:
        if move.failed:
            first.setdefault(move.node, move)
    served = facts.hours_in(SERVING)
    until_failure = facts.hours_in(SERVING, {name: move.at for name, move in first.items()})
    hours, until = (sum(each.get(name, 0.0) for name in nodes) for each in (served, until_failure))
    return [
        (f"between interruptions (MTBI){of}", *_mean(len(withdrawn), hours)),
        (f"to a failed test (MTTF){of}", *_mean(len(first), until)),
    ]


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
