"""What a test of an idle node is worth, by stage and by the minutes that it takes."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model.nodes import Node
from muster.rules.idle import hazard, worth
from muster.rules.idle.history import Numbers
from muster.rules.idle.selection import Known, facts_of
from muster_criteria.stages import STAGES
from tests.muster.rules.idle.fleets import ALL, HOUR, NOW, node, passed


def count_of(nodes: list[Node], passes: dict[str, dict[str, datetime.datetime]]) -> Numbers:
    """The hidden defects that are to be expected, nodes × groups."""
    facts = facts_of(nodes, Known(nodes, NOW, {}, passes, ALL, {}))
    return np.sum([count for _, count in worth.hidden(facts, hazard.public_prior().model)], axis=0)


def test_a_stage_that_just_passed_is_worth_less() -> None:
    nodes = [node("a"), node("b")]
    passes = {"a": passed(100), "b": passed(100) | {"performance": NOW - HOUR}}
    facts = facts_of(nodes, Known(nodes, NOW, {}, passes, ALL, {}))
    stale, fresh = worth.worth(facts, hazard.public_prior().model, worth.cost_of(worth.usual_minutes()) <= 45.0).value
    just = worth.subsets().index(("intake", "performance"))
    assert fresh[just] < 0.7 * stale[just]


def test_a_test_leaves_less_hidden_and_time_more() -> None:
    nodes = [node(name) for name in "abc"]
    first, second, third = count_of(nodes, {"a": passed(10), "b": passed(100), "c": passed(100) | {"burn_in": NOW}})
    seen = worth.chances().max(axis=1) > 0.0
    assert (first < second)[seen].all()
    assert (third <= second).all()
    assert third[0] < second[0], "burn-in finds slow GPUs"


def test_a_pass_clears_what_it_could_see_and_nothing_else() -> None:
    nodes = [node(name) for name in "ab"]
    passes = {"a": passed(100), "b": passed(100) | {"thermal": NOW}}
    before, after = count_of(nodes, passes)
    unseen = worth.chances()[:, STAGES.index("thermal")] == 0.0
    assert after[unseen] == pytest.approx(before[unseen])
    assert (after[~unseen] < before[~unseen]).all()


def test_what_a_stage_has_missed_is_not_worth_another_look_by_it() -> None:
    """Else a short test that was just made is worth more in a minute than a long one that was not, and so for ever."""
    nodes = [node("a")]
    passes = {"a": passed(800) | {"intake": NOW - HOUR, "performance": NOW - HOUR}}
    facts = facts_of(nodes, Known(nodes, NOW, {}, passes, ALL, {}))
    fits = worth.cost_of(worth.usual_minutes()) <= 45.0
    value = dict(zip(worth.subsets(), worth.worth(facts, hazard.public_prior().model, fits).value[0], strict=True))
    an_hour = dict(zip(worth.subsets(), worth.worth(facts_of(nodes, Known(nodes, NOW, {}, {"a": passed(1)}, ALL, {})),
                       hazard.public_prior().model, fits).value[0], strict=True))  # fmt: skip
    again = "intake", "performance"
    assert value[again] == pytest.approx(an_hour[again], rel=0.01)
    assert value[STAGES] == pytest.approx(value["intake", "burn_in", "integrity", "thermal"], rel=0.05)


@given(st.integers(1, 40), st.floats(0.0, 2000.0), st.integers(0, 2**31))
def test_at_the_price_the_minutes_are_just_used(units: int, minutes: float, seed: int) -> None:
    """Of units of several models, each with minutes of its own."""
    dice = np.random.default_rng(seed)
    value = dice.lognormal(0.0, 2.0, (units, len(worth.subsets())))
    cost = worth.cost_of(dice.uniform(1.0, 30.0, (units, len(STAGES))))
    at = worth.price(value, cost, minutes)

    def used(price: float) -> float:
        net = value - price * cost
        wanted = net.max(axis=1) > 0.0
        return float(cost[wanted, net.argmax(axis=1)[wanted]].sum())

    assert used(at) <= minutes + 1e-6
    assert at == worth.PRICE_LEAST or used(at * 0.999) > minutes, "a lower price would not do"
