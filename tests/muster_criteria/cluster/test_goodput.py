"""The forecast: its limits, its optimum, and what was published."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.cluster.goodput import PUBLISHED_RATES, SIZES, best_interval_s, ettr, forecast, mttf_s

RSC_1 = PUBLISHED_RATES["Meta RSC-1 (arXiv:2410.21680)"]


def test_the_time_between_failures_is_the_published_one() -> None:
    """Meta projects 1.8 h for 16,384 GPUs from the rate of RSC-1 (arXiv:2410.21680, section 3)."""
    assert mttf_s(2048, RSC_1) == pytest.approx(1.8 * 3600, rel=0.01)


positive = st.floats(0.1, 1e4)


@given(positive, positive, st.floats(1e5, 1e8), st.floats(0.2, 5.0))
def test_no_other_interval_gets_more_of_the_time(save: float, restart: float, mttf: float, other: float) -> None:
    best = best_interval_s(save, mttf)
    if save < 0.001 * mttf:  # where saves are short against the time between failures, as the formula assumes
        slack = 2.0 * save / best  # it is the optimum to first order
        assert ettr(save, best, restart, mttf) >= ettr(save, best * other, restart, mttf) - slack


@given(positive, positive, st.floats(1e-5, 0.1))
def test_more_gpus_never_get_more(save: float, restart: float, rate: float) -> None:
    shares = [each.ettr for each in forecast(save, restart, rate)]
    assert shares == sorted(shares, reverse=True)
    assert all(0.0 <= share <= 1.0 for share in shares)


def test_without_failures_everything_trains() -> None:
    assert [each.ettr for each in forecast(60.0, 300.0, 0.0)] == [1.0] * len(SIZES)
    assert math.isinf(mttf_s(1, 0.0))


@pytest.mark.parametrize(("nodes", "rate"), [(0, 0.1), (1, -0.1)])
def test_what_is_no_job_is_refused(nodes: float, rate: float) -> None:
    with pytest.raises(ValueError):
        mttf_s(nodes, rate)
