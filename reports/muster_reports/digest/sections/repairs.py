"""How long nodes stay out of service after a fault: median and tail, by group of fault."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Sequence

import numpy as np
from scipy.stats import CensoredData, ecdf

from muster_criteria.words import duration
from muster_reports.digest.facts import Facts, Repair, Section, when
from muster_reports.text import plural

ORDER = 5


def section(facts: Facts) -> Section | None:
    """Returns a row for all repairs of the year, and one for each group of faults."""
    if not facts.repairs:
        return None
    groups: dict[str, list[Repair]] = collections.defaultdict(list)
    for repair in facts.repairs:
        groups[repair.group].append(repair)
    ranked = sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))
    rows = [_row("all", facts.repairs, facts.until), *(_row(group, of, facts.until) for group, of in ranked)]
    return Section(
        "Repairs",
        f"{plural(len(facts.repairs), 'time')} in the year a node left service for a fault. Until it served again:",
        ("group of faults", "times", "median", "90 % within", "still out"),
        tuple(rows),
        (1.0, *(len(of) / len(facts.repairs) for _, of in ranked)),
        columns=("node", "group of faults", "out", "back"),
        behind=tuple(
            (each.node, each.group, when(each.out), when(each.back) if each.back else "") for each in facts.repairs
        ),
    )


def _row(group: str, repairs: Sequence[Repair], until: datetime.datetime) -> tuple[str, ...]:
    still = sum(each.back is None for each in repairs)
    return group, str(len(repairs)), *(_within(repairs, until, share) for share in (0.5, 0.9)), str(still)


def _within(repairs: Sequence[Repair], until: datetime.datetime, share: float) -> str:
    """The time within which so many served again (Kaplan and Meier, 1958: one that is out counts as long as it is)."""
    over = [(each.back - each.out).total_seconds() for each in repairs if each.back is not None]
    lasting = [(until - each.out).total_seconds() for each in repairs if each.back is None]
    if not over:
        return "not known yet"
    known = ecdf(CensoredData(uncensored=over, right=lasting)).cdf
    reached = np.flatnonzero(known.probabilities >= share - 1e-9)
    return duration(float(known.quantiles[reached[0]])) if len(reached) else "not known yet"
