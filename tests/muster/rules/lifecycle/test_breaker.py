"""When the circuit breaker opens: withdrawals from production alone, in a window, in fleets large enough."""

from __future__ import annotations

import datetime
import random

from hypothesis import given
from hypothesis import strategies as st

from muster.model.breaker import Breaker
from muster.model.events import Event
from muster.model.states import SERVING, State
from muster.rules.lifecycle import breaker

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
LIMITS = breaker.Limits(24 * HOUR, 0.2, 50, 20)


def event(
    node: str,
    hours_ago: float = 1,
    before: State = State.REVALIDATION,
    after: State = State.QUARANTINE,
    person: str = "",
) -> Event:
    proof = {"person": person} if person else {"run": "dag/run"}
    return Event(node, NOW - hours_ago * HOUR, before, after, "muster", "", proof)


def stands(out: int, fleet: int, limits: breaker.Limits = LIMITS) -> Breaker:
    """A fleet of ``fleet`` nodes, of which ``out`` were withdrawn an hour ago."""
    names = [f"n{place}" for place in range(fleet)]
    return breaker.state([event(name) for name in names[:out]], names[out:], NOW, limits)


def test_the_share_just_inside_and_just_outside() -> None:
    assert not stands(3, 20).open
    assert stands(4, 20).open
    assert not stands(4, 25).open
    assert stands(5, 25).open


def test_the_absolute_number_counts_in_a_large_fleet() -> None:
    assert not stands(49, 1000).open
    assert stands(50, 1000).open


def test_a_small_fleet_has_none() -> None:
    assert not stands(19, 19).open
    assert not stands(19, 19).open
    assert [stands(19, 19).state, stands(3, 20).state, stands(4, 20).state] == ["inactive", "closed", "open"]
    assert stands(20, 20).open


def test_the_window_just_inside_and_just_outside() -> None:
    serving = [f"s{place}" for place in range(20)]

    def out(hours_ago: float) -> tuple[str, ...]:
        return breaker.state([event("a", hours_ago)], serving, NOW, LIMITS).withdrawn

    assert out(23.99) == ("a",)
    assert out(24) == ()
    assert out(0) == ("a",)


def test_what_is_no_withdrawal() -> None:
    """First qualifications go to quarantine freely; a test that ends well takes no node out, nor does a person here."""
    history = [
        event("first", before=State.BURN_IN),
        event("out for a test", before=State.PRODUCTION, after=State.REVALIDATION),
        event("back", after=State.PRODUCTION),
        event("by a person", before=State.PRODUCTION, person="Ada"),
        event("remark", before=State.PRODUCTION, after=State.PRODUCTION),
    ]
    assert breaker.withdrawals(history, NOW, 24 * HOUR) == ()
    assert breaker.withdrawals([*history, event("x", person="muster")], NOW, 24 * HOUR) == ("x",)


def test_it_says_where_it_stands() -> None:
    assert stands(1, 20).sentence == "1 of 20 nodes were withdrawn from production in the last 24 hours, and 4 may be"
    assert stands(1, 20).why == ""
    assert stands(4, 20).why == (
        "the circuit breaker is open: 4 of 20 nodes were withdrawn from production in the last 24 hours, "
        "and at most 4 may be"
    )


STATES = st.sampled_from(State)
EVENTS = st.lists(
    st.builds(
        event, st.sampled_from("abcdefgh"), st.floats(-5, 60), STATES, STATES, st.sampled_from(["", "", "Ada", "root"])
    ),
    max_size=40,
)


@given(EVENTS, st.integers(0, 60), st.randoms())
def test_it_counts_each_node_once_whatever_the_order_and_never_for_what_is_over(
    events: list[Event], serving: int, chance: random.Random
) -> None:
    in_service = [f"s{place}" for place in range(serving)]
    history = breaker.state(events, in_service, NOW, LIMITS)
    shuffled = list(events)
    chance.shuffle(shuffled)
    assert breaker.state([*shuffled, *events], in_service, NOW, LIMITS) == history
    old = [event("z", 24 + each) for each in range(3)]
    assert breaker.state([*events, *old], in_service, NOW, LIMITS) == history
    leaving = {
        each.node
        for each in events
        if each.from_state in SERVING and each.to_state not in SERVING and each.evidence.get("person") != "Ada"
    }
    assert set(history.withdrawn) <= leaving
    # One more withdrawal never closes it, and one that is held is never more than the limits say.
    one_more = breaker.state([*events, event("new")], in_service, NOW, LIMITS)
    assert set(one_more.withdrawn) == {*history.withdrawn, "new"}


@given(st.integers(0, 120), st.integers(20, 400), st.floats(0.01, 1), st.integers(1, 80))
def test_it_lets_one_more_go_exactly_as_long_as_both_limits_hold(
    out: int, fleet: int, share: float, nodes: int
) -> None:
    out = min(out, fleet)
    limits = breaker.Limits(24 * HOUR, share, nodes, 20)
    assert stands(out, fleet, limits).open == (out + 1 > share * fleet or out + 1 > nodes)
