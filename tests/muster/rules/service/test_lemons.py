"""Repeat offenders are ranked by recency and part, and normal use stops at the score that the setting names."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model.failures import Failure
from muster.model.nodes import Lemon, Node
from muster.model.states import State
from muster.rules.service import lemons

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def failed(node: str, days_ago: float, *, replaced: bool = False, group: str = "memory") -> Failure:
    at = NOW - days_ago * DAY
    return Failure(node, group, at, at + DAY, replaced)


def node(name: str, lemon: Lemon | None = None) -> Node:
    return Node(
        name, "h", 22, "", "k", "h100", State.PRODUCTION, {}, "", "", "", {}, simulated=False, added_at=NOW, lemon=lemon
    )


def test_recent_failures_outrank_many_old_ones_and_a_replaced_part_counts_nothing() -> None:
    failures = [
        *(failed("old", days) for days in (300, 310, 320, 330)),
        *(failed("new", days) for days in (1, 40)),
        *(failed("repaired", days, replaced=True) for days in (1, 2)),
        failed("once", 1),
    ]
    marked = Lemon("Ada", NOW, "it hangs")
    nodes = [node(name) for name in ("old", "new", "repaired", "once")] + [node("marked", marked)]
    found = lemons.offenders(failures, nodes, NOW)
    assert [(each.node, each.times) for each in found] == [("new", 2), ("old", 4), ("marked", 0)]
    assert found[0].score == pytest.approx(0.9672 + 0.2636, abs=1e-3)  # exp(-1/30) + exp(-40/30)
    assert found[-1].mark


def test_normal_use_stops_at_the_limit_and_0_never_stops_it() -> None:
    failures = [failed("a", 0), failed("a", 30)]
    assert lemons.reason(failures, NOW, 1.36)
    assert not lemons.reason(failures, NOW, 1.37)
    assert not lemons.reason(failures, NOW, 0.0)
    assert not lemons.reason([], NOW, 0.0)


FAILURES = st.lists(st.builds(lambda days, new: failed("a", days, replaced=new), st.floats(0, 400), st.booleans()))


@given(FAILURES, st.floats(0, 400), st.floats(0.01, 5))
def test_a_failure_more_never_lowers_a_score_and_waiting_or_a_new_part_never_raises_it(
    failures: list[Failure], days: float, limit: float
) -> None:
    score = lemons.score(failures, NOW)
    assert lemons.score([*failures, failed("a", days)], NOW) >= score
    assert lemons.score(failures, NOW + days * DAY) <= score
    assert lemons.score([dataclasses.replace(each, replaced=True) for each in failures], NOW) == 0
    assert bool(lemons.reason(failures, NOW, limit)) == (score >= limit)
