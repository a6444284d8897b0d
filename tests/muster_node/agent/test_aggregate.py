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
