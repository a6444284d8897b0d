"""How long a node was under users' jobs between two sweeps."""

from __future__ import annotations

import datetime

import pytest

from muster.judging.sweep import under_a_job
from muster.model.schedulers import UsersJob

SINCE = datetime.datetime(2026, 5, 4, 12, tzinfo=datetime.UTC)


def at(seconds: float) -> datetime.datetime:
    return SINCE + datetime.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0), ([(-100, None)], 600), ([(-100, 60)], 60), ([(540, 900)], 60), ([(-100, -50)], 0), ([(700, None)], 0),
        ([(0, 100), (50, 80), (90, 200)], 200), ([(300, 400), (0, 100)], 200), ([(100, 50)], 0),
    ],
)  # fmt: skip
def test_jobs_side_by_side_count_once_and_only_since_the_last_sweep(
    spans: list[tuple[float, float | None]], seconds: float
) -> None:
    jobs = [UsersJob("n1", str(begin), at(begin), None if end is None else at(end)) for begin, end in spans]
    assert under_a_job(jobs, SINCE, at(600)) == seconds
