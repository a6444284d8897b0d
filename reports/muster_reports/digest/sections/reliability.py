"""Mean time between interruptions and mean time to failure of nodes in service, with intervals."""

from __future__ import annotations

from collections.abc import Collection

from muster_criteria.counts import CONFIDENCE, rate_limits
from muster_reports.digest.facts import SERVING, Facts, Move, Section, when

ORDER = 3


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
    """Events, exposure, mean, and the exact interval of its Poisson rate."""
    fewest, most = rate_limits(events, max(hours, 1e-9), CONFIDENCE)
    if not events:
        return "0", f"{hours:,.0f}", "none seen", f"at least {1 / most:,.0f} h"
    return str(events), f"{hours:,.0f}", f"{hours / events:,.0f} h", f"{1 / most:,.0f} to {1 / fewest:,.0f} h"
