"""Times in state, in bounded memory, against the exact computation over all values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_node.agent.aggregate import StateSeries


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
    for state in {*exact, *series.seconds}:
        assert series.seconds.get(state, 0.0) == pytest.approx(exact.get(state, 0.0), abs=1e-6)


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


@pytest.mark.parametrize(
    ("slow", "peak"),
    [
        ({60, 2_000, 4_000, 8_000, 10_000}, 1.0),  # single readings, however many
        (set(range(500, 510)), 10.0),
        (set(range(500, 600, 2)), 30.0),  # comes and goes
        (set(range(500, 700)), 60.0),
        (set(), None),
    ],
)
def test_the_most_within_a_minute_does_not_grow_with_the_load(slow: set[int], peak: float | None) -> None:
    series = StateSeries()
    for t in range(3 * 3600):
        series.add(float(t), "hw_slowdown" if t in slow else "none", 3.0)
    assert series.peaks.get("hw_slowdown") == peak


@given(st.lists(st.sampled_from(["none", "a", "b", "a+b"]), min_size=2, max_size=200))
def test_the_most_within_a_minute_is_that_of_the_worst_minute(states: list[str]) -> None:
    series = StateSeries()
    for t, state in enumerate(states):
        series.add(float(t), state, 3.0)
    for cause in "ab":
        on = [cause in state.split("+") for state in states[:-1]]
        worst = max(sum(on[at : at + 60]) for at in range(len(on)))
        assert series.peaks.get(cause, 0.0) == worst
