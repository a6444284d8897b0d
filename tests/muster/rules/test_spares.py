"""Spares for a job: more than independent failures would need, and never fewer for more nodes or a longer job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.rules.spares import correlation, spares

DOWN = 1.78e-4 * 24 * 5.5
"""Of the record of 400 servers: faults an hour, and the mean repair of 5.5 days."""


@pytest.mark.parametrize(("nodes", "binomial", "needed"), [(32, 3, 5), (64, 5, 7), (128, 8, 13), (256, 12, 23)])
def test_failures_that_come_together_need_more(nodes: int, binomial: int, needed: int) -> None:
    """``needed``: what the record shows of so many of its servers."""
    assert spares(nodes, DOWN, 0.0) == pytest.approx(binomial, abs=1)
    assert spares(nodes, DOWN, 0.013) == pytest.approx(needed, abs=2)


@given(st.integers(1, 500), st.floats(0.001, 0.2), st.floats(0.0, 0.1), st.floats(0.0, 60.0))
def test_more_nodes_and_longer_jobs_need_no_fewer(nodes: int, down: float, together: float, days: float) -> None:
    one = spares(nodes, down, together, days=days, repair_days=3.0)
    assert 0 <= one <= nodes
    assert spares(nodes + 10, down, together, days=days, repair_days=3.0) >= one
    assert spares(nodes, down, together, days=days + 30.0, repair_days=3.0) >= one


def test_the_correlation_is_that_of_the_counts() -> None:
    nodes, down, together = 100, 0.05, 0.02
    variance = nodes * down * (1.0 - down) * (1.0 + (nodes - 1) * together)
    assert correlation(nodes * down, variance, nodes) == pytest.approx(together)
    assert correlation(nodes * down, nodes * down * (1.0 - down), nodes) == 0.0


@pytest.mark.parametrize(("down", "together"), [(1.0, 0.0), (-0.1, 0.0), (0.1, 1.0)])
def test_shares_lie_between_0_and_1(down: float, together: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        spares(10, down, together)
