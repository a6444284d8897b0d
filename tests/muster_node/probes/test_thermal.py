"""Figures from series of temperatures: of ones that settle and fall as physics has it, and of ones that do not."""

import math

import pytest

from muster_node.workloads.under_load.cooling import cooldown_constant, resistance_of_fall, time_to_steady


def warming(seconds, constant=40.0, rounded=True):
    """From 30 to 65 °C, read every second from a load's start at 100 s on."""
    readings = [65.0 - 35.0 * math.exp(-second / constant) for second in range(seconds)]
    return [100.0 + second for second in range(seconds)], [float(round(r)) if rounded else r for r in readings]


def falling(seconds, constant, step=1.0, fall=35.0):
    """Whole degrees, from the load's end at 500 s on."""
    moments = [step * number for number in range(int(seconds / step) + 1)]
    return [500.0 + m for m in moments], [float(round(30.0 + fall * math.exp(-m / constant))) for m in moments]


def test_a_temperature_is_steady_from_its_last_reading_outside_one_degree_on():
    times, readings = warming(600, rounded=False)
    # 35 °C · exp(−t/40 s) falls below 1 °C after 40 s · ln 35 = 142.2 s
    assert time_to_steady(times, readings, 100.0, 300) == (143.0, "")
    assert time_to_steady(times, readings, 90.0, 300) == (153.0, "")


@pytest.mark.parametrize(("off", "value"), [(1.0, 0.0), (1.01, 30.0)])
def test_one_degree_is_within_and_more_is_not(off, value):
    readings = [60.0 + off] * 30 + [60.0] * 30
    assert time_to_steady(list(range(60)), readings, 0.0, 30) == (value, "")


@pytest.mark.parametrize(("outliers", "steady"), [(2, True), (3, False)])
def test_up_to_two_outliers_do_not_delay_the_settling_time(outliers, steady):
    readings = [60.0] * 100
    readings[80 : 80 + outliers] = [75.0] * outliers
    value, note = time_to_steady(list(range(100)), readings, 0.0, 50)
    assert (value == 0.0) is steady
    assert bool(note) is not steady


@pytest.mark.parametrize(("settled_from", "measured"), [(160, True), (60, False)])
def test_a_temperature_that_still_rises_has_no_settling_time(settled_from, measured):
    times, readings = warming(400)
    value, note = time_to_steady(times, readings, 100.0, settled_from)
    assert (value is not None) is measured
    assert bool(note) is not measured
    assert measured or "not steady" in note


@pytest.mark.parametrize("constant", [8.0, 40.0, 55.0])
@pytest.mark.parametrize("step", [1.0, 2.0])
def test_the_constant_is_found_through_whole_degrees(constant, step):
    value, note = cooldown_constant(*falling(120, constant, step))
    assert value == pytest.approx(constant, rel=0.05)
    assert note == ""


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        (falling(120, 70.0), "watched for 120 s, less than 2 time constants"),
        (falling(120, 40.0, fall=4.0), "cooled by 4 °C only"),
        (falling(8, 2.0), "9 readings of the cool-down are too few"),
        (falling(120, 0.2), "cools faster than it is read"),
        (([], []), "0 readings"),
        (([5.0] * 20, [60.0] * 20), "too few"),
    ],
)
def test_a_constant_that_the_series_does_not_support_is_not_reported(series, reason):
    value, note = cooldown_constant(*series)
    assert value is None
    assert reason in note


def test_the_shortest_sufficient_series_gives_a_constant():
    assert cooldown_constant(*falling(120, 40.0, fall=6.0))[0] == pytest.approx(40.0, rel=0.3)
    assert cooldown_constant(*falling(9, 2.0))[0] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    ("load", "cooled", "expected"),
    [
        (([84.0], [690.0]), ([28.0], [130.0]), 0.1),
        (([], [690.0]), ([28.0], [130.0]), None),
        (([84.0], [690.0]), ([28.0], []), None),
        (([84.0], [690.0]), ([28.0], [560.0]), None),
        (([84.0], [690.0]), ([80.0], [130.0]), None),
    ],
)
def test_resistance_needs_a_fall_of_temperature_and_of_power(load, cooled, expected):
    value, note = resistance_of_fall(load, cooled)
    assert value == pytest.approx(expected)
    assert bool(note) is (expected is None)
