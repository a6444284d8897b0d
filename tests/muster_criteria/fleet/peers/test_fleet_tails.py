"""The budget of false alarms: thresholds from few or many peers, heavy and skewed tails, with faulty ones among."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from muster_criteria.fleet.budget import OWN_PAST, SHARES, part
from muster_criteria.fleet.peers.tails import PROBABILITIES, SAMPLE_MIN, tails_of, threshold
from muster_criteria.fleet.series.keyed import ALONE_WEIGHT, GIVEN_WEIGHT, INDEX_WEIGHT
from muster_criteria.stage.sprt import decide

Draw = Callable[[np.random.Generator, int], np.ndarray]
DRAWS: dict[str, Draw] = {
    "gaussian": lambda rng, size: rng.standard_normal(size),
    "student-t(4)": lambda rng, size: rng.standard_t(4, size),
    "skewed": lambda rng, size: rng.gamma(2.0, size=size) - 2.0,
    "skewed the other way": lambda rng, size: 2.0 - rng.gamma(2.0, size=size),
}
RARE = 1e-5
"""As rare as one million draws can show, and far beyond what the fleets below hold."""


def tail_of(sample: np.ndarray) -> np.ndarray | None:
    """The tail of one metric that has none beside it."""
    return tails_of([(sample, 1.0)])[0]


def exceeded(limits: list[float], draw: Draw) -> np.ndarray:
    """How often healthy parts go beyond each of these distances."""
    many = np.sort(draw(np.random.default_rng(99), 1_000_000))
    return np.array([1.0 - np.searchsorted(many, limit) / len(many) for limit in limits])


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("peers", [800, 8_000, 80_000])
def test_healthy_parts_exceed_a_threshold_no_more_often_than_it_allows(draw: Draw, peers: int) -> None:
    """On average over fleets: any one fleet's luck is its own."""
    fleets = [np.random.default_rng(seed) for seed in range(40)]
    limits = [threshold(tail, RARE) for rng in fleets if (tail := tail_of(draw(rng, peers))) is not None]

    assert len(limits) == len(fleets)
    assert np.mean(exceeded(limits, draw)) <= 1.2 * RARE


def limits_beside(draw: Draw, others: list[Draw], weight: float = 1.0) -> list[float]:
    """The threshold of a metric in each of 40 fleets of 1,000 nodes, estimated beside these others."""
    limits = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        samples = [(draw(rng, 8_000), 1.0), *((other(rng, 8_000), weight) for other in others)]
        tail = tails_of(samples)[0]
        assert tail is not None
        limits.append(threshold(tail, RARE))
    return limits


@pytest.mark.slow
def test_like_metrics_tell_of_each_others_tails() -> None:
    """What luck does to a threshold is a third less with five metrics like it, and no less where they tell nothing."""
    draw = DRAWS["student-t(4)"]
    alone, beside = limits_beside(draw, []), limits_beside(draw, [draw] * 5)

    assert np.std(beside) < 0.7 * np.std(alone)
    assert np.mean(exceeded(beside, draw)) <= 1.2 * RARE
    assert np.std(limits_beside(draw, [draw] * 5, weight=0.0)) > 0.9 * np.std(alone)


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(draw, id=name, marks=[] if name == "student-t(4)" else pytest.mark.slow)
        for name, draw in DRAWS.items()
    ],
)
def test_a_metric_among_others_that_are_unlike_it_is_left_to_its_own_sample(draw: Draw) -> None:
    """Nearly: a long tail among three short ones is exceeded half as often again as asked for, and not twice."""
    others = [other for other in DRAWS.values() if other is not draw]

    assert np.mean(exceeded(limits_beside(draw, others), draw)) <= 1.5 * RARE


def test_one_that_cannot_tell_leaves_the_others_as_they_are() -> None:
    rng = np.random.default_rng(5)
    groups = [(rng.standard_t(4, 8_000), 1.0), (rng.standard_t(4, 8_000), 1.0)]
    silent = [(np.full(500, 1.5), 1.0), (np.arange(SAMPLE_MIN - 1.0), 1.0)]
    both, among = tails_of(groups), tails_of([silent[0], groups[0], silent[1], groups[1]])

    assert np.array_equal(among[1], both[0])
    assert np.array_equal(among[3], both[1])
    assert among[2] is None
    assert tails_of([]) == []


def test_a_gaussian_fleet_is_not_judged_so_mildly_that_variation_hides_twelve_percent() -> None:
    """At σ 1.75 % and a family's part of the budget, 99 of 100 devices 12 % slow must lie beyond the threshold.

    At the first visit: later, a device's own past tells.
    """
    tail = tail_of(np.random.default_rng(1).standard_normal(80_000))
    assert tail is not None

    weights = GIVEN_WEIGHT + INDEX_WEIGHT + 2 * ALONE_WEIGHT + 1.0  # a family, two metrics of none, room for members
    spent = part("peers", "varied", GIVEN_WEIGHT / (8 * weights), has_past=False)
    assert threshold(tail, spent) <= 12.0 / 1.75 - 2.33


def test_faulty_parts_at_real_prevalence_hardly_move_the_threshold() -> None:
    rng = np.random.default_rng(2)
    healthy = rng.standard_normal(80_000)
    clean, mixed = tail_of(healthy), tail_of(np.concatenate([healthy, rng.uniform(8.0, 40.0, 160)]))
    assert clean is not None
    assert mixed is not None

    assert threshold(mixed, 1e-6) <= 1.15 * threshold(clean, 1e-6)


def test_with_too_few_peers_there_is_no_tail() -> None:
    drawn = np.random.default_rng(3).standard_normal(SAMPLE_MIN)

    assert tail_of(drawn) is not None
    assert tail_of(drawn[1:]) is None
    assert tail_of(np.append(drawn[1:], np.nan)) is None


def test_a_threshold_falls_with_what_may_be_spent() -> None:
    tail = tail_of(np.random.default_rng(4).standard_t(4, 2_000))
    assert tail is not None

    assert np.all(np.diff([threshold(tail, p) for p in PROBABILITIES]) >= 0.0)


def test_equal_values_are_their_own_threshold() -> None:
    tail = tail_of(np.full(500, 1.5))
    assert tail is not None

    assert threshold(tail, 1e-6) == 1.5


@pytest.mark.parametrize("has_past", [True, False])
def test_the_budget_is_spent_once_at_most(has_past: bool) -> None:
    """A tenth is kept back at least, for tails that are longer than predicted."""
    for low, variation in (([1.0] * 480, [4.0, 1.0, 0.1]), ([1.0], [2.0] * 8)):
        spent = {
            rule: sum(
                part(rule, spread, weight / sum(weights), confirmed=confirmed, has_past=has_past)
                for confirmed in (False, True)
                for spread, weights in (("low", low), ("varied", variation))
                for weight in weights
            )
            for rule in SHARES
        }
        assert 0.6e-3 <= sum(spent.values()) <= 0.9e-3 * (1.0 + 1e-9)
        assert has_past == all(spent[rule] > 0.0 for rule in OWN_PAST)


@pytest.mark.parametrize(
    ("failed", "decision"),
    [
        ([True, True], "fail"),
        ([True], "repeat"),
        ([False] * 9, "clear"),
        ([False] * 8, "repeat"),
        ([True] + [False] * 21, "clear"),
        ([True] + [False] * 20, "repeat"),
        ([False] * 3 + [True, True], "fail"),
        ([True, True] + [False] * 50, "fail"),
        ([], "repeat"),
    ],
)
def test_two_failures_fail_and_nine_passes_clear(failed: list[bool], decision: str) -> None:
    assert decide(failed) == decision
