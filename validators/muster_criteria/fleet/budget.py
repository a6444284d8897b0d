"""The budget of false alarms: how often a healthy node may fail in one visit, and how that is divided.

At most ``HEALTHY_FAIL_PER_VISIT`` over all devices × metrics × rules together (union bound, so correlated metrics only
make it stricter). It is spent where it helps, by kind of spread and by rule:

* Series of low spread are many, and their true spread has the longer tail: a third goes to their peers' rule, and
  most of that to readings that a retest confirmed, since two that agree exclude noise. The milder of two exceeds its
  predicted tail up to twice as often as predicted (see ``tails``), so they spend more.
* Series that vary from part to part ("varied") are few, but no retest changes them: most of their budget goes to
  single readings among peers. A device without a past has only these rules, and its rules about the past cost
  nothing, so they get twice the budget that they have where there is a past.
* A device's distance from its own past is noise alone, which has a short tail, and a shorter one for two readings;
  siblings show little that peers do not. A little is enough for both.
* The rest is reserve for a fleet whose tails are longer than its sample shows.
"""

from __future__ import annotations

from muster_criteria.fleet.series.comparisons import Spread

HEALTHY_FAIL_PER_VISIT = 1e-3
"""Probability: at most one healthy node in 1,000 is failed per visit."""
HEALTHY_WARN_PER_VISIT = 1e-2
"""How often a healthy node may be an outlier in varied series: no retest explains these, so a person is called. Chosen
here: ten times the rate of failures."""
EFFECT_MIN = 0.03
"""Share; a smaller distance never fails."""
RETEST_MIN = 0.025
"""Share from which a reading is an outlier: less than ``EFFECT_MIN`` by some run-to-run noise (0.3–0.5 %), which may
hide what is there."""
RETEST_Z = 3.5
"""Robust z beyond which a reading is an outlier (Iglewicz and Hoaglin)."""
MAD_FLOOR = 0.005
"""Least MAD, as a share of the median."""
PEERS_MIN, SIBLINGS_MIN = 8, 4
"""With fewer peers no device is judged; with fewer siblings none is compared with them."""
VISITS_MIN = 3
"""Earlier visits that a device's own history needs."""

NODE_RULES = ("node_peers", "node_drift")
"""Rules that compare the common level of all devices of a node; a finding blames no single device."""
OWN_PAST = ("drift", "node_drift")
"""Rules that compare a device, or a node, with its own earlier visits; only noise separates these figures."""
COMPARED = ("peers", "siblings")
"""Rules that compare a part with others; part-to-part variation separates these figures, too."""

SHARES: dict[str, dict[Spread, tuple[float, float]]] = {
    "peers": {"low": (0.05, 0.31), "varied": (0.20, 0.01)},
    "siblings": {"low": (0.005, 0.005), "varied": (0.005, 0.005)},
    "drift": {"low": (0.01, 0.04), "varied": (0.01, 0.02)},
    "node_peers": {"low": (0.005, 0.005), "varied": (0.005, 0.005)},
    "node_drift": {"low": (0.005, 0.005), "varied": (0.005, 0.005)},
}
"""Shares of the budget by rule and spread: for single readings, and for those that a retest confirmed."""
_NOTHING: dict[Spread, tuple[float, float]] = {"low": (0.0, 0.0), "varied": (0.0, 0.0)}
SHARES_WITHOUT_PAST: dict[str, dict[Spread, tuple[float, float]]] = {
    **SHARES,
    **dict.fromkeys(OWN_PAST, _NOTHING),
    "peers": {**SHARES["peers"], "varied": (0.47, 0.01)},
}
"""The same for a device that has too few visits for the rules about its own past."""


def varies_by_part(rule: str, spread: Spread) -> bool:
    """Returns whether part-to-part variation is in what ``rule`` compares: a second reading then shows the same."""
    return spread == "varied" and rule in COMPARED


def repeat_informs(rule: str, spread: Spread) -> bool:
    """Returns whether a second reading can distinguish a fault from noise.

    Part-to-part variation is the same in every reading; against its own past, a device or node varies by noise only.
    """
    return spread == "low" or rule in OWN_PAST


def part(rule: str, spread: Spread, share: float, *, confirmed: bool = False, has_past: bool = True) -> float:
    """Probability of a false alarm that ``rule`` may spend on one series, by a single or a ``confirmed`` reading.

    ``share``: the series' part of the weight of all series of its spread on a node (see ``keyed.Series.weight``).
    ``has_past``: whether the device has enough visits for the rules about its own past.
    """
    shares = SHARES if has_past else SHARES_WITHOUT_PAST
    return HEALTHY_FAIL_PER_VISIT * shares[rule][spread][confirmed] * share


def warn_part(share: float) -> float:
    """Probability that each rule which compares parts may find an outlier in a varied series."""
    return HEALTHY_WARN_PER_VISIT * share / len(COMPARED)
