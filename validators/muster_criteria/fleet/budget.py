"""The budget of false alarms: how often a healthy node may be failed in one visit, and how that is divided.

At most ``healthy_fail_per_visit`` over all devices × metrics × rules together (union bound, so correlated metrics only
make it stricter). It goes where it helps. Metrics of low spread are judged by the least effect that counts anyway, so
most of it is given to the few series that follow the lottery, and there to single readings, since no retest undoes a
lottery, and to the comparison with siblings, which shares inlet and hour of the day with them. The rest is divided over
all series by the rules' weights, half to single readings and half to those that a retest confirmed.
"""

from __future__ import annotations

import dataclasses
import math

NODE_RULES = ("node_peers", "node_drift")
"""Rules about the node's own level: all its devices alike, which is no device's fault."""
RULES = {"peers": 0.35, "siblings": 0.1, "drift": 0.3, "cusum": 0.05, "node_peers": 0.1, "node_drift": 0.1}
"""The rules among which a series' part of the budget is divided, and the share that each of them gets."""

LOTTERY_SHARE = {"siblings": 0.5, "peers": 0.05, "drift": 0.07}
"""Share of the whole budget that goes to the series that follow the lottery, by rule."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """What conviction may cost in healthy nodes, and what it must show.

    ``healthy_fail_per_visit``: probability. ``effect_min``: share; a smaller distance never convicts. ``retest_z``:
    robust z beyond which a retest is asked for (Iglewicz and Hoaglin: 3.5), never a conviction. ``mad_floor``: share of
    the median below which a MAD is not believed. ``peers_min``: fewer peers judge nobody. ``visits_min``: earlier
    visits that a device's own history needs. ``cusum_k``: reference value in standard deviations.
    """

    healthy_fail_per_visit: float = 1e-3
    effect_min: float = 0.03
    retest_z: float = 3.5
    mad_floor: float = 0.005
    peers_min: int = 8
    siblings_min: int = 4
    visits_min: int = 3
    cusum_k: float = 0.5

    def part(self, rule: str, series: int, lottery: int, *, of_lottery: int, confirmed: bool = False) -> float:
        """Probability of a false alarm that ``rule`` may spend on one series, by a single or a ``confirmed`` reading.

        ``series``: how many a node has, indices included; ``lottery``: the weight together of those that stand for a
        lottery (see ``keyed.Series.lottery``); ``of_lottery``: this one's weight.
        """
        apart = sum(LOTTERY_SHARE.values()) if lottery else 0.0
        share = (1.0 - apart) / max(series, 1) * RULES[rule] / 2.0
        if of_lottery and not confirmed:
            share += LOTTERY_SHARE.get(rule, 0.0) * of_lottery / max(lottery, 1)
        return self.healthy_fail_per_visit * share


STANDARD = Budget()
"""At most one healthy node in 1,000 failed per visit."""


def cusum_limit(probability: float, k: float = 0.5) -> float:
    """The limit h of a one-sided CUSUM whose mean run length without a shift is 1 / ``probability``.

    Siegmund's approximation: ARL0 = (e^{2kb} − 2kb − 1) / 2k² with b = h + 1.166 (D. Siegmund, Sequential Analysis,
    1985). At 480 series and one false alarm in 1,000 visits: h ≈ 11.2, not the textbook 5.
    """
    target = 2.0 * k * k / probability
    low, high = 0.0, 1.0 + math.log(target + 2.0) * 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        if math.exp(middle) - middle - 1.0 < target:
            low = middle
        else:
            high = middle
    return low / (2.0 * k) - 1.166
