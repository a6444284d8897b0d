"""Medians and times in state, in bounded memory, against the exact computation over all values."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_node.agent.aggregate import KEPT_MAX, NumberSeries, StateSeries

SENSIBLE = st.floats(min_value=-1e4, max_value=1e4).map(lambda value: round(value, 3))


def series_of(values: list[float]) -> NumberSeries:
    series = NumberSeries()
    for value in values:
        series.add(value)
    return series


@given(st.lists(SENSIBLE, min_size=1, max_size=300))
def test_the_median_of_a_short_series_is_exact(values: list[float]) -> None:
    assert series_of(values).median() == statistics.median_low(values)


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32), count=st.integers(KEPT_MAX, 20 * KEPT_MAX))
def test_a_long_series_keeps_so_many_and_its_median_is_near_in_rank(seed: int, count: int) -> None:
    dice = random.Random(seed)
    values = [dice.gauss(70.0, 5.0) for _ in range(count)]
    series = series_of(values)
    assert len(series._kept) <= KEPT_MAX
    assert series.count == count
    estimate = series.median()
    assert estimate is not None
    below = sum(value <= estimate for value in values) / count
    assert below == pytest.approx(0.5, abs=0.08)  # five standard errors of the median of 1,024


def test_what_is_kept_is_spread_over_the_whole_series() -> None:
    series = series_of([float(number) for number in range(100_000)])
    assert series.median() == pytest.approx(50_000, rel=0.01)


def test_nothing_seen_has_no_median() -> None:
    assert NumberSeries().median() is None


@given(st.lists(st.tuples(st.floats(0, 2.9), st.sampled_from("abc")), min_size=1, max_size=100))
def test_time_in_state_adds_up_to_the_time_between_first_and_last_sample(steps: list[tuple[float, str]]) -> None:
    series, t = StateSeries(), 1000.0
    exact: dict[str, float] = {}
    held = ""
    for step, state in steps:
        if held:
            exact[held] = exact.get(held, 0.0) + step
            t += step
        series.add(t, state, 3.0)
        held = state
    for state, seconds in series.seconds.items():
        assert seconds == pytest.approx(exact.get(state, 0.0), abs=1e-6)


def test_a_gap_in_the_readings_is_not_booked_as_time_in_a_state() -> None:
    series = StateSeries()
    for t, state in [(0, "none"), (1, "hw_thermal"), (1000, "none"), (1001, "none")]:
        series.add(float(t), state, 3.0)
    assert series.seconds == {"none": 2.0, "hw_thermal": 3.0}


def test_the_number_of_states_is_bounded() -> None:
    series = StateSeries()
    for t in range(1000):
        series.add(float(t), f"state{t}", 3.0)
    assert len(series.seconds) <= 65
    assert sum(series.seconds.values()) == 999
