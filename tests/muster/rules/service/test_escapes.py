"""Failures joined to the tests that had passed: the last of each stage that can see the fault, and rates."""

from __future__ import annotations

import datetime

import pytest

from muster.model.failures import Failure
from muster.rules.service.escapes import Pass, escapes, rates, summed

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
VISIBLE = {"memory": {"integrity", "burn_in"}, "links": {"performance"}}


def passed(stage: str, days_ago: float, node: str = "a", level: str = "standard") -> Pass:
    return Pass(node, stage, level, NOW - days_ago * DAY, f"{stage}-{days_ago:g}")


def test_a_failure_escaped_the_last_pass_of_each_stage_that_can_see_it() -> None:
    passes = [
        passed("burn_in", 40), passed("integrity", 9), passed("integrity", 3), passed("performance", 3),
        passed("integrity", 3, "b"), passed("integrity", 1),
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
