"""What a counter gained: what cannot be known is no zero, and a counter that fell has hidden something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_node.hardware.seam import NOT_SUPPORTED, Fact
from muster_node.workloads.under_load.growth import Growth, growth, resets, total

LOST = "NVML: GPU is lost"


def _reading(value: float | None, note: str = LOST) -> Fact:
    return Fact("ecc_uncorrected", "gpu3", "count", value, note="" if value is not None else note)


def _grown(*values: float | None) -> Growth:
    return growth([_reading(value) for value in values])


def test_what_was_counted_before_the_load_is_not_counted() -> None:
    assert _grown(7, 7, 12) == Growth(5.0)


@pytest.mark.parametrize("values", [(7.0, None), (None, 7.0), (7.0, 7.0, None), (None, None)])
def test_a_counter_without_both_ends_has_no_zero(values: tuple[float | None, ...]) -> None:
    found = _grown(*values)
    assert (found.value, found.note) == (None, LOST)


def test_a_counter_that_is_not_reported_any_more_has_no_zero() -> None:
    assert growth([_reading(7), None]).value is None
    assert growth([None, _reading(7)]).value is None
    assert growth([]).note


@pytest.mark.parametrize(("values", "added"), [((5, 2**31, 5), 0), ((5, 4e9, 7, 9), 4), ((0, 3e9, 0), 0)])
def test_one_reading_that_no_counter_can_have_is_left_out(values: tuple[float, ...], added: float) -> None:
    assert _grown(*values) == Growth(added)


@pytest.mark.parametrize("values", [(1, 2, 1), (0, 7, 0), (5, 2**31, 4)])
def test_a_counter_that_comes_back_to_where_it_was_may_have_been_reset(values: tuple[float, ...]) -> None:
    assert _grown(*values).note


def test_what_was_seen_before_a_counter_was_lost_counts_at_least() -> None:
    found = _grown(7, 9, None)
    assert found.value == 2
    assert "at least" in found.note


def test_a_counter_that_was_reset_hides_errors_and_never_gives_a_negative_number() -> None:
    found = _grown(40, 0)
    assert found.value is None
    assert "40" in found.reset
    assert resets({"ecc_uncorrected": found})
    assert _grown(0, 5, 0, 1).value == 6, "at least these were added"


@pytest.mark.parametrize(("values", "least"), [((3, 1), 1), ((900, 640), 640), ((0, 2, 1, 4), 6)])
def test_what_was_counted_since_a_reset_is_a_lower_bound(values: tuple[float, ...], least: float) -> None:
    found = growth([_reading(value) for value in values], falls_to_zero=True)
    assert found.value == least
    assert "at least" in found.note
    assert found.reset


def test_what_a_counter_still_shows_that_forgets_was_not_added() -> None:
    """The kernel's ring loses its oldest messages, and with them those that are counted in it."""
    assert _grown(9, 8).value is None
    assert _grown(9, 8, 10).value == 2


def test_a_counter_that_wrapped_at_32_bits_is_unknown_and_was_not_reset() -> None:
    found = _grown(2.0**32 - 3, 4)
    assert found.value is None
    assert found.reset == ""


@pytest.mark.parametrize(("values", "least"), [((5, 4.2e9), None), ((5, 8, 4.2e9, 4.2e9), 3.0)])
def test_a_counter_that_leaps_was_read_wrongly_and_shows_no_burst(
    values: tuple[float, ...], least: float | None
) -> None:
    found = _grown(*values)
    assert (found.value, found.reset) == (least, "")
    assert "leapt" in found.note


@given(st.lists(st.one_of(st.none(), st.integers(0, 2**40).map(float)), max_size=8))
def test_growth_is_never_negative_and_a_missing_value_has_a_reason(values: list[float | None]) -> None:
    found = _grown(*values)
    assert found.value is None or found.value >= 0
    assert found.value is not None or found.note


def test_links_are_summed_and_the_noisy_ones_are_named() -> None:
    parts = {"link 0": Growth(0.0), "link 1": Growth(4.0), "link 2": Growth(2.0)}
    assert total(parts) == (6.0, 3, "link 1: 4; link 2: 2")


def test_a_sum_without_one_of_its_parts_is_unknown_or_a_lower_bound() -> None:
    down = {"link 1": Growth(None, "it could not be read any more after the load")}
    value, known, note = total({"link 0": Growth(0.0), **down})
    assert (value, known) == (None, 1)
    assert "link 1" in note
    assert total({"link 0": Growth(3.0), **down})[0] == 3.0


def test_parts_that_the_machine_does_not_have_are_not_missed() -> None:
    absent = Growth(None, NOT_SUPPORTED)
    assert total({"a": Growth(0.0), "b": absent})[0] == 0.0
    assert total({"b": absent}) == (None, 0, NOT_SUPPORTED)
