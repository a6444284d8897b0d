"""Failures joined to the tests that had passed: the last of each stage that can see the fault, and rates."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model.failures import Failure
from muster.rules.escapes import WEIGHT, Escape, Pass, chances, escapes, rates, summed, was_there

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
VISIBLE = {"memory": {"integrity", "burn_in"}, "links": {"performance"}}


def passed(stage: str, days_ago: float, node: str = "a", level: str = "standard") -> Pass:
    return Pass(node, stage, level, NOW - days_ago * DAY, f"{stage}-{days_ago:g}")


def test_a_failure_escaped_the_last_pass_of_each_stage_that_can_see_it() -> None:
    passes = [
        passed("integrity", 9), passed("integrity", 3), passed("integrity", 1), passed("performance", 3),
        passed("burn_in", 40), passed("integrity", 3, "b"),
    ]  # fmt: skip
    found = escapes([Failure("a", "memory", NOW - 2 * DAY)], passes, VISIBLE)
    assert [(each.passed.run_id, each.passed.node, each.age) for each in found] == [("integrity-3", "a", DAY)]


@pytest.mark.parametrize("group", ["unknown", "links"])
def test_what_no_stage_that_passed_can_see_is_no_escape(group: str) -> None:
    assert not escapes([Failure("a", group, NOW)], [passed("integrity", 1)], VISIBLE)


def test_rates_are_by_level_and_have_the_exact_interval() -> None:
    """Of 1 event: 0.0513 to 4.744 at 90 % (Garwood 1936)."""
    passes = [passed("integrity", day, f"n{day}", level) for day in range(1, 26) for level in ("short", "long")]
    counts = [{(each.level, each.stage): 1} for each in passes]
    (found,) = rates(escapes([Failure("n3", "memory", NOW)], passes, VISIBLE)[:1], summed(counts))
    assert (found.escapes, found.passes, found.rate) == (1, 25, 40.0)
    assert (found.low, found.high) == pytest.approx((40.0 * 0.0513, 40.0 * 4.744), rel=1e-3)


TAU = 14 * 24.0
PRIOR = {"memory": {"integrity": 0.2, "performance": 0.0}, "links": {"performance": 1.0}}


def escaped(count: int, age_days: float, group: str = "memory", stage: str = "integrity") -> list[Escape]:
    return [Escape(Failure("a", group, NOW), passed(stage, age_days))] * count


@given(st.floats(0.0, 720.0), st.floats(0.0, 1.0))
def test_the_sooner_it_fails_and_the_weaker_the_test_the_likelier_it_was_there(age: float, chance: float) -> None:
    likely = was_there(age, chance, TAU)
    assert 0.0 <= likely <= 1.0
    assert was_there(age + 24.0, chance, TAU) <= likely
    assert was_there(age, min(chance + 0.1, 1.0), TAU) <= likely


@given(st.integers(0, 50), st.integers(0, 50))
def test_what_a_stage_found_raises_its_chance_and_what_it_missed_lowers_it(found: int, missed: int) -> None:
    made = chances(PRIOR, {("memory", "integrity"): found} if found else {}, escaped(missed, 1.0), TAU)
    if not (found or missed):
        assert made == []
        return
    (chance,) = made
    assert (chance.found, chance.missed, chance.prior) == (found, missed, 0.2)
    assert chance.low <= chance.chance <= chance.high
    if not missed:
        assert chance.chance == pytest.approx((WEIGHT * 0.2 + found) / (WEIGHT + found))
    if not found:
        assert chance.chance < 0.2


def test_a_stage_that_sees_no_such_fault_learns_nothing_and_one_that_sees_each_stays_sure() -> None:
    caught = {("memory", "performance"): 3, ("links", "performance"): 3, ("unknown", "intake"): 1}
    (sure,) = chances(PRIOR, caught, [], TAU)
    assert (sure.group, sure.chance, sure.high) == ("links", 1.0, 1.0)
