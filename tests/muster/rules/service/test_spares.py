"""Spares for a job: more than independent failures would need, and never fewer for more nodes or a longer job."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model.failures import Failure
from muster.model.nodes import Lemon, Node, Pause
from muster.model.states import State
from muster.rules.service import replacing
from muster.rules.service import spares as rules
from muster.rules.service.spares import correlation, spares

DOWN = 1.78e-4 * 24 * 5.5
"""Of the record of 400 servers: faults an hour, and the mean repair of 5.5 days."""


@pytest.mark.parametrize(("nodes", "binomial", "needed"), [(32, 3, 5), (64, 5, 7), (128, 8, 13), (256, 12, 23)])
def test_failures_that_come_together_need_more(nodes: int, binomial: int, needed: int) -> None:
    """``needed``: what the record shows of so many of its servers."""
    assert spares(nodes, DOWN, 0.0) == pytest.approx(binomial, abs=1)
    assert spares(nodes, DOWN, 0.013) == pytest.approx(needed, abs=2)


@pytest.mark.parametrize("together", [2.220446049250313e-16, 1e-12, 1e-7, 1e-5])
def test_a_correlation_of_next_to_nothing_is_none(together: float) -> None:
    assert spares(18, 0.125, together) == spares(18, 0.125, 0.0)


@given(st.integers(1, 500), st.floats(0.001, 0.2), st.floats(0.0, 0.1), st.floats(0.0, 60.0))
def test_more_nodes_and_longer_jobs_need_no_fewer(nodes: int, down: float, together: float, days: float) -> None:
    one = spares(nodes, down, together, days=days, repair_days=3.0)
    assert 0 <= one <= nodes
    assert spares(nodes + 10, down, together, days=days, repair_days=3.0) >= one
    assert spares(nodes, down, together, days=days + 30.0, repair_days=3.0) >= one
    assert spares(nodes, down, together, days=days, repair_days=30.0) <= one


def test_the_correlation_is_that_of_the_counts() -> None:
    nodes, down, together = 100, 0.05, 0.02
    variance = nodes * down * (1.0 - down) * (1.0 + (nodes - 1) * together)
    assert correlation(nodes * down, variance, nodes) == pytest.approx(together)
    assert correlation(nodes * down, nodes * down * (1.0 - down), nodes) == 0.0


@pytest.mark.parametrize(("down", "together"), [(1.0, 0.0), (0.0, 0.0), (0.1, 1.0)])
def test_shares_lie_between_0_and_1(down: float, together: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        spares(10, down, together)


NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def node(name: str, state: State = State.PRODUCTION, sku: str = "h100", **labels: str) -> Node:
    came = NOW - 500 * DAY
    return Node(name, name, 22, "", "", sku, state, {}, "~", "r", "", labels, False, came, machine_since=came)


def failed(*days_ago: tuple[float, float]) -> list[Failure]:
    return [
        Failure(f"n{at}", "memory", NOW - start * DAY, NOW - end * DAY if end else None)
        for at, (start, end) in enumerate(days_ago)
    ]


def test_a_fleet_without_failures_is_like_the_record_at_first_and_better_with_time() -> None:
    assert rules.measured([NOW], [], NOW, rules.PERIOD) == rules.RECORD
    few, many = (rules.measured([NOW - 400 * DAY] * count, [], NOW, rules.PERIOD) for count in (1, 1000))
    assert many.down < few.down < rules.RECORD.down
    assert few.repair_days == rules.RECORD.repair_days


def test_a_node_that_was_retired_after_a_failure_was_out_until_then() -> None:
    came, at, over = [NOW - 700 * DAY] * 32, NOW - 300 * DAY, NOW - 298 * DAY
    back = [Failure(f"n{each}", "memory", at, back=over) for each in range(3)]
    gone = [Failure(f"n{each}", "memory", at, gone=over) for each in range(3)]
    assert rules.measured(came, gone, NOW, rules.PERIOD) == rules.measured(came, back, NOW, rules.PERIOD)


def test_own_failures_and_repairs_outweigh_the_record() -> None:
    """Of 100 nodes over a year 200 fail, each for a tenth of a day, evenly: 0.055 % down, not together."""
    own = rules.measured([NOW - 400 * DAY] * 100, failed(*[(at * 1.8 + 1.0, at * 1.8 + 0.9) for at in range(200)]),
                         NOW, rules.PERIOD)  # fmt: skip
    assert own.failures == 200
    assert own.repair_days == pytest.approx((5 * 5.5 + 20) / 205)
    assert own.down < 0.003
    assert own.together < 0.002


def test_failures_at_once_are_seen_as_such_and_one_that_is_not_repaired_counts_until_now() -> None:
    came = [NOW - 400 * DAY] * 100
    alone = rules.measured(came, failed(*[(10.0 * at + 3.0, 10.0 * at) for at in range(1, 31)]), NOW, rules.PERIOD)
    at_once = rules.measured(came, failed(*[(60.0, 57.0)] * 30), NOW, rules.PERIOD)
    assert at_once.down == pytest.approx(alone.down)
    assert at_once.together > 10 * alone.together
    assert rules.measured(came, failed((50.0, 0.0)), NOW, rules.PERIOD).repair_days == pytest.approx(77.5 / 6)


@given(st.integers(0, 30), st.integers(1, 300), st.floats(0.0, 30.0))
def test_the_largest_job_that_is_covered_is_and_the_next_is_not(pool: int, most: int, days: float) -> None:
    size = rules.covered(pool, most, rules.RECORD, days)
    assert rules.needed(size, rules.RECORD, days) <= pool
    assert size == most or rules.needed(size + 1, rules.RECORD, days) > pool


def test_each_sku_has_its_own_pool() -> None:
    nodes = [*(node(f"n{at}") for at in range(40)), node("q", State.QUALIFIED), node("b", sku="b200"),
             node("gone", State.RETIRED, "gb200")]  # fmt: skip
    served = {each.name: each.added_at for each in nodes}
    (h100, _), (b200, _) = rules.pools(nodes, served, (), failed(*[(9.0, 8.0)] * 30), NOW, 7.0)
    assert (h100.sku, h100.service, h100.qualified, h100.failures) == ("h100", 40, 1, 30)
    assert (b200.sku, b200.qualified, b200.failures, b200.covers) == ("b200", 0, 0, 0)
    assert h100.needed > 1 > b200.covers


@pytest.mark.parametrize("waited", [0, 300])
def test_a_node_can_fail_in_service_from_when_it_first_served_whenever_it_was_enrolled(waited: int) -> None:
    came = NOW - 30 * DAY
    nodes = [dataclasses.replace(node(f"n{at}"), added_at=came - waited * DAY) for at in range(400)]
    never = node("never", State.QUALIFIED)
    rates = rules.rates_of([*nodes, never], {each.name: came for each in nodes}, failed(*[(20.0, 15.0)] * 24), NOW)
    assert rates == rules.measured([came] * 400, failed(*[(20.0, 15.0)] * 24), NOW, rules.PERIOD)


def test_a_node_that_is_tested_after_its_repair_still_counts() -> None:
    back, served = node("n0", State.REGISTERED), {"n0": NOW - 30 * DAY}
    assert rules.rates_of([back], served, failed((9.0, 8.0)), NOW).failures == 1


def test_a_spare_is_what_may_take_a_place() -> None:
    waits = node("waits", State.QUALIFIED)
    paused = dataclasses.replace(node("paused", State.QUALIFIED), pause=Pause("Ada", NOW + DAY, "a customer's"))
    lemon = dataclasses.replace(node("lemon", State.QUALIFIED), lemon=Lemon("Ada", NOW, "again"))
    nodes = [node("n0"), waits, paused, lemon, node("fell", State.QUALIFIED)]
    ((pool, _),) = rules.pools(nodes, {}, {"fell"}, [], NOW, 7.0)
    assert pool.qualified == len(replacing.candidates(nodes[0], nodes, {"fell"})) == 1
