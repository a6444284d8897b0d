"""Aggregates in bounded memory against the exact computation over all values."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_node.agent.aggregate import KEPT_MAX, NumberSeries, StateSeries

SENSIBLE = st.floats(min_value=-1e4, max_value=1e4).map(lambda value: round(value, 3))
START = 1.8e9


def nearest_rank(values: list[float], share: float) -> float:
    return sorted(values)[max(1, math.ceil(share * len(values) - 1e-9)) - 1]


def series_of(values: list[float], step_s: float = 1.0) -> NumberSeries:
    series = NumberSeries()
    for index, value in enumerate(values):
        series.add(START + index * step_s, value)
    return series


@given(st.lists(SENSIBLE, min_size=1, max_size=300), st.sampled_from([0.01, 0.5, 0.95, 1.0]))
def test_quantiles_of_a_short_series_are_exact(values: list[float], share: float) -> None:
    assert series_of(values).quantile(share) == nearest_rank(values, share)


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32), count=st.integers(KEPT_MAX, 20 * KEPT_MAX), share=st.sampled_from([0.05, 0.5, 0.95]))
def test_a_long_series_keeps_so_many_and_its_quantiles_are_near_in_rank(seed: int, count: int, share: float) -> None:
    dice = random.Random(seed)
    values = [dice.gauss(70.0, 5.0) for _ in range(count)]
    series = series_of(values)
    assert len(series._kept) <= KEPT_MAX
    assert series.count == count
    estimate = series.quantile(share)
    assert estimate is not None
    below = sum(value <= estimate for value in values) / count
    assert below == pytest.approx(share, abs=0.08)  # five standard errors of the median of 1,024


def test_what_is_kept_is_spread_over_the_whole_series() -> None:
    series = series_of([float(number) for number in range(100_000)])
    assert series.quantile(0.5) == pytest.approx(50_000, rel=0.01)
    assert series.quantile(0.01) == pytest.approx(1_000, abs=200)


@given(st.lists(SENSIBLE, min_size=2, max_size=200), st.floats(0.05, 30))
def test_the_slope_is_the_least_squares_slope_per_minute(values: list[float], step_s: float) -> None:
    # Epoch seconds have a resolution of 0.25 µs; the exact slope is computed from the rounded times.
    times = [(START + index * step_s - START) / 60 for index in range(len(values))]
    exact = statistics.linear_regression(times, values).slope
    largest = max(abs(value) for value in values)
    assert series_of(values, step_s).slope_per_min() == pytest.approx(exact, rel=1e-9, abs=1e-10 * largest / step_s)


@given(st.lists(SENSIBLE, min_size=1, max_size=100))
def test_extremes_are_exact_and_bound_the_quantiles(values: list[float]) -> None:
    series = series_of(values)
    assert (series.minimum, series.maximum) == (min(values), max(values))
    median = series.quantile(0.5)
    assert median is not None
    assert series.minimum <= median <= series.maximum


def test_nothing_seen_is_none_and_one_sample_has_no_slope() -> None:
    assert NumberSeries().quantile(0.5) is None
    assert series_of([3.0]).slope_per_min() is None


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


@given(st.lists(st.integers(20, 110), min_size=1, max_size=300), st.sampled_from([0.5, 0.95]))
def test_a_sensor_that_reads_whole_degrees_is_reported_exactly(values: list[int], share: float) -> None:
    assert series_of([float(value) for value in values]).quantile(share) == nearest_rank([*map(float, values)], share)
