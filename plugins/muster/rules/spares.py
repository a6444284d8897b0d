"""How many spare nodes a job needs, from how often nodes fail and how long they stay away. Pure."""

from __future__ import annotations

import math

ENOUGH = 0.99
"""The chance with which the spares suffice."""


def spares(nodes: int, down: float, together: float, *, days: float = 0.0, repair_days: float = 1.0) -> int:
    """Returns how many spares cover a job of ``nodes`` nodes over ``days`` days in all but 1 of 100 such jobs.

    ``down``: the share of time that a node is out of service (rate · *mean* repair time). ``together``: the correlation
    of two nodes' being down, 0 if they fail independently; a fleet measures it by ``correlation``. The number down at a
    moment is beta-binomial (Skellam, 1948), since the plain binomial is too small: 12 for 256 nodes where a record of
    400 servers needed 23. A job sees as many independent moments as repairs fit into it, and one more (Bonferroni).
    Raises ValueError for shares outside 0 to 1.
    """
    if not (0.0 <= down < 1.0 and 0.0 <= together < 1.0):
        raise ValueError(f"shares lie between 0 and 1, and {down:g} down or {together:g} together does not")
    if down == 0.0 or nodes <= 0:
        return 0
    from scipy import stats  # heavy: not where a DAG file is parsed

    enough = 1.0 - (1.0 - ENOUGH) / (1.0 + days / repair_days)
    if together == 0.0:
        return int(stats.binom.ppf(enough, nodes, down))
    scale = 1.0 / together - 1.0
    return int(stats.betabinom.ppf(enough, nodes, down * scale, (1.0 - down) * scale))


def correlation(mean: float, variance: float, nodes: int) -> float:
    """Returns how much nodes are down together, from the mean and the variance over time of how many of ``nodes`` are.

    By moments: a beta-binomial's variance is n·p·(1 − p)·(1 + (n − 1)·ρ). 0 if they vary no more than independent ones.
    """
    down = mean / nodes if nodes else 0.0
    independent = nodes * down * (1.0 - down)
    if nodes < 2 or independent <= 0.0 or math.isnan(variance):
        return 0.0
    return min(max((variance / independent - 1.0) / (nodes - 1), 0.0), 0.999)
