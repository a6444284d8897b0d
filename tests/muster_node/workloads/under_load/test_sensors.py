"""Readings stand for the time around them; what lies between is unknown."""

from __future__ import annotations

import pytest

from muster_node.hardware.seam import Sample
from muster_node.workloads.under_load.sensors import Record, frozen


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def _recorded(times: list[float], states: list[str], end: float, paced: bool = True) -> Record:
    """Readings of a throttle state and a temperature at these times, due each second."""
    hand = Hand()
    record = Record(hand, 1.0, paced)
    for at, state in zip(times, states, strict=True):
        hand.time = at
        record.add([Sample("throttle", "gpu2", "state", state=state), Sample("temperature", "gpu2", "°C", value=60.0)])
    hand.time = end
    record.end()
    return record


def test_time_in_a_state_reaches_half_way_to_the_next_reading_and_begins_with_the_first() -> None:
    record = _recorded([0.0, 1.0, 3.0, 3.5], ["hw_thermal", "none", "none", "hw_thermal"], 4.0)
    assert record.sampled() == {"gpu2": {"hw_thermal": 0.5 + 0.75, "none": 1.5 + 1.25}}
    assert record.share("throttle", "gpu2") == pytest.approx(1.0)


def test_readings_far_apart_stand_for_a_part_of_the_time() -> None:
    record = _recorded([0.0, 45.0], ["none", "none"], 90.0)
    assert record.share("temperature", "gpu2") == pytest.approx((1.5 + 3.0) / 90.0)
    assert record.sampled()["gpu2"]["none"] == pytest.approx(4.5)


def test_a_sensor_that_stops_stands_for_the_time_until_then() -> None:
    record = _recorded([float(at) for at in range(31)], ["none"] * 31, 60.0)
    assert record.share("temperature", "gpu2") == pytest.approx(31.5 / 60.0)


def test_a_simulated_clock_that_outruns_its_readings_loses_none() -> None:
    record = _recorded([0.0, 45.0], ["none", "none"], 90.0, paced=False)
    assert record.share("temperature", "gpu2") == pytest.approx(1.0)


def test_a_sensor_that_a_device_does_not_have_has_no_share() -> None:
    record = _recorded([0.0], ["none"], 1.0)
    assert record.share("power", "gpu2") is None
    assert record.share("throttle", "cpu0") is None


@pytest.mark.parametrize("series", ["temperature", "hbm_temperature", "thermal_margin", "hbm_margin"])
def test_a_sensor_that_moves_neither_under_load_nor_after_it_is_stuck(series: str) -> None:
    def readings(values: list[float]) -> Record:
        record = Record(Hand(), 1.0)
        for value in values:
            record.add([Sample(series, "gpu2", "°C", value=value)])
        return record

    assert series in frozen(readings([23.0] * 12), readings([23.0] * 12), "gpu2")
    assert not frozen(readings([23.0] * 12), readings([40.0] * 12), "gpu2")


def _temperatures(values: list[float], states: dict[int, str] | None = None, series: str = "temperature") -> Record:
    hand = Hand()
    record = Record(hand, 1.0)
    for at, value in enumerate(values):
        hand.time = float(at)
        state = (states or {}).get(at, "none")
        record.add([Sample(series, "gpu2", "°C", value=value), Sample("throttle", "gpu2", "state", state=state)])
    record.end()
    return record


@pytest.mark.parametrize(
    ("series", "values", "left"),
    [
        ("temperature", [64, 65, 118, 66, 66], [64, 65, 66, 66]),
        ("thermal_margin", [23, 22, -31, 21, 21], [23, 22, 21, 21]),
    ],
)
def test_one_reading_of_no_temperature_is_left_out_and_said(
    series: str, values: list[float], left: list[float]
) -> None:
    record = _temperatures(values, series=series)
    assert record.drop_spike(series, "gpu2")
    assert record.series[series, "gpu2"] == left
    assert len(record.times[series, "gpu2"]) == len(left)


@pytest.mark.parametrize(
    ("values", "states"),
    [
        ([64, 65, 84, 66, 66], {}),  # not so far
        ([64, 65, 118, 118, 66], {}),  # two in a row
        ([64, 118, 64, 64, 118, 64], {}),  # twice
        ([64, 65, 118, 90, 66], {}),  # it cools down from there
        ([64, 65, 118, 66, 66], {2: "hw_thermal"}),  # the driver saw it too
        ([118, 64, 64], {}),
        ([64, 64, 118], {}),
    ],
)
def test_heat_that_may_be_heat_counts(values: list[float], states: dict[int, str]) -> None:
    record = _temperatures([*values], states)
    assert record.drop_spike("temperature", "gpu2") == ""
    assert max(record.series["temperature", "gpu2"]) == max(values)
