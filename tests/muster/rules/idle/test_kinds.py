"""Real and simulated nodes: neither takes room from the other, nor says anything of it."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muster.model.states import State
from muster.rules.idle.capacity import Limits
from muster.rules.idle.forecast import forecast
from muster.rules.idle.past import risk_of
from muster.rules.idle.selection import Idle, Known, choose
from tests.muster.rules.idle.fleets import FLEETS, HOUR, NOW, failure, node, passed, served

Drawn = list[tuple[State, Idle | None, int | None, bool, str]]


@given(FLEETS, FLEETS, st.sampled_from([0.01, 0.1, 0.5]), st.sampled_from([0, 24, 100]))
def test_simulated_nodes_change_no_test_of_real_ones(real: Drawn, others: Drawn, share: float, after: int) -> None:
    drawn = {f"n{place}": each for place, each in enumerate(real)}
    nodes = [node(name, each[0]) for name, each in drawn.items()]
    drawn |= {f"s{place}": each for place, each in enumerate(others)}
    besides = [dataclasses.replace(node(f"s{place}", each[0]), simulated=True) for place, each in enumerate(others)]
    known = Known(
        [*besides, *nodes], NOW, {name: each[1] for name, each in drawn.items() if each[1] is not None},
        {name: passed(each[2]) for name, each in drawn.items()},
        Limits(share, 45.0, after * HOUR, node_kw=10.0, domain_kw={"": 35.0}),
        leased={name for name, each in drawn.items() if each[3]},
    )  # fmt: skip
    alone = dataclasses.replace(known, nodes=nodes)
    names = {each.name for each in nodes}
    mixed, expected = choose(known), choose(alone)
    assert [each for each in mixed.chosen if each.node in names] == list(expected.chosen)
    assert {name: why for name, why in mixed.passed_over.items() if name in names} == dict(expected.passed_over)
    (tests, _), (expected_tests, _) = forecast(known, hours=2.0), forecast(alone, hours=2.0)
    assert [each for each in tests if each[1].node in names] == expected_tests


def test_failures_of_simulated_nodes_say_nothing_of_real_ones() -> None:
    real = [node("a", rack="r1"), node("b", rack="r1")]
    others = [dataclasses.replace(node(f"s{each}", rack="r1"), simulated=True) for each in range(4)]
    failures = [failure(f"s{each}", days=days) for each in range(4) for days in (5.0, 50.0, 100.0)]
    mixed, learned = risk_of([*others, *real], served([*others, *real]), failures, NOW)
    alone, expected = risk_of(real, served(real), [], NOW)
    assert learned.to_json() == expected.to_json()
    for field in dataclasses.fields(clocks := alone.clocks(real)):
        assert np.array_equal(getattr(mixed.clocks(real), field.name), getattr(clocks, field.name))
    only, _ = risk_of(others, served(others), failures, NOW)
    assert np.isfinite(only.clocks(others).since_any).all()
