"""The forecast: its limits, its optimum, and what was published."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.cluster.goodput import (
    ASSUMED_RESTART,
    SIZES,
    Input,
    Inputs,
    best_interval_s,
    ettr,
    forecast,
    mttf_s,
)
from muster_criteria.counts import rate_limits
from tests.bench.training import RSC_1


def inputs(save: float = 30.0, restart: float = 600.0, rate: float = RSC_1) -> Inputs:
    return Inputs(Input(save, True, "a test"), Input(restart, True, "a test"), Input(rate, True, "a test"), 8)


def test_the_time_between_failures_is_the_published_one() -> None:
    """Meta projects 1.8 h for 16,384 GPUs from the rate of RSC-1 (arXiv:2410.21680, section 3)."""
    assert mttf_s(2048, RSC_1) == pytest.approx(1.8 * 3600, rel=0.01)


@pytest.mark.parametrize(
    ("rate", "shares"),
    [(6.5e-3, (0.970, 0.929, 0.811)), (2.34e-3, (0.983, 0.963, 0.909)), (1e-3, (0.990, 0.978, 0.948))],
)
def test_the_share_is_that_of_the_published_formula(rate: float, shares: tuple[float, ...]) -> None:
    """1 - N·r·(restart + interval / 2) - save / interval (arXiv:2410.21680) with 30 s saves and 10 min restarts."""
    found = forecast(inputs(rate=rate), (1024, 4096, 16_384))
    assert [each.ettr for each in found] == pytest.approx(shares, abs=0.02)


positive = st.floats(0.1, 1e4)


@given(positive, positive, st.floats(1e5, 1e8), st.floats(0.2, 5.0))
def test_no_other_interval_gets_more_of_the_time(save: float, restart: float, mttf: float, other: float) -> None:
    best = best_interval_s(save, mttf)
    if save < 0.001 * mttf:  # where saves are short against the time between failures, as the formula assumes
        slack = 2.0 * save / best  # it is the optimum to first order
        assert ettr(save, best, restart, mttf) >= ettr(save, best * other, restart, mttf) - slack


@given(positive, positive, st.floats(1e-5, 0.1))
def test_more_gpus_never_get_more_of_the_time(save: float, restart: float, rate: float) -> None:
    shares = [each.ettr for each in forecast(inputs(save, restart, rate))]
    assert shares == sorted(shares, reverse=True)
    assert all(0.0 <= share <= 1.0 for share in shares)


@given(st.integers(0, 40), st.floats(10.0, 1e5))
def test_the_interval_of_the_rate_is_that_of_the_share(failures: int, node_days: float) -> None:
    low, high = rate_limits(failures, node_days)
    rate = dataclasses.replace(inputs().rate, value=failures / node_days, low=low, high=high)
    for each in forecast(dataclasses.replace(inputs(), rate=rate)):
        assert each.low <= each.ettr <= each.high


def test_goodput_counts_only_the_time_that_trains() -> None:
    (found,) = forecast(dataclasses.replace(inputs(), tokens_per_s=100.0), (1024,))
    assert found.goodput == pytest.approx(1024 * 100.0 * found.ettr)
    assert forecast(inputs())[0].goodput is None


def test_what_is_assumed_is_not_measured() -> None:
    assert inputs().measured
    assert not dataclasses.replace(inputs(), restart=ASSUMED_RESTART).measured


def test_without_failures_everything_trains() -> None:
    assert [each.ettr for each in forecast(inputs(60.0, 300.0, 0.0))] == [1.0] * len(SIZES)
    assert math.isinf(mttf_s(1, 0.0))


@pytest.mark.parametrize(("nodes", "rate"), [(0, 0.1), (1, -0.1)])
def test_what_is_no_job_is_refused(nodes: float, rate: float) -> None:
    with pytest.raises(ValueError):
        mttf_s(nodes, rate)


def test_the_interval_of_a_count_is_the_exact_one() -> None:
    """Five events: 1.970 to 10.513 at 90 %; none: at most 2.303 (Garwood 1936)."""
    assert rate_limits(5, 1.0) == pytest.approx((1.970, 10.513), abs=0.001)
    assert rate_limits(0, 1.0) == pytest.approx((0.0, 2.303), abs=0.001)
    with pytest.raises(ValueError):
        rate_limits(1, 0.0)
