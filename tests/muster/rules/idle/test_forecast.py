"""The forecast of the day: the selection's own choices, one hour after the other."""

from __future__ import annotations

import dataclasses
import datetime
import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from muster.model.states import SERVING, State
from muster.rules.idle.capacity import CANARIES, Limits, Signs
from muster.rules.idle.forecast import forecast
from muster.rules.idle.selection import Idle, Known
from tests.muster.rules.idle.fleets import CHANGED, FLEETS, HOUR, IDLE, LEASED, NOW, OTHER, node, passed


def test_the_forecast_fills_the_day_one_after_the_other() -> None:
    nodes = [node(f"n{number}") for number in range(60)]
    idle = {each.name: IDLE for each in nodes}
    passes = {each.name: passed(48) for each in nodes}
    tests, passed_over = forecast(Known(nodes, NOW, idle, passes, Limits(share=0.02, minutes=45.0)))
    starts = [at for at, _ in tests]
    assert starts == sorted(starts)
    assert all(later - at >= datetime.timedelta(minutes=5) for at, later in itertools.pairwise(starts))
    assert starts[-1] < NOW + 24 * HOUR
    assert len(tests) + len(passed_over) == 60
    morning = lambda at: "closed" if at.hour < 8 else ""  # noqa: E731
    late, _ = forecast(Known(nodes, NOW, idle, passes, Limits(share=0.02, minutes=45.0)), closed_at=morning)
    assert late[0][0].hour == 8


@given(FLEETS, st.integers(1, 3), st.sampled_from([15.0, 25.0]), st.integers(0, 2))
@example(
    [LEASED, LEASED, OTHER, (State.REGISTERED, IDLE, None, True, "too hot"), CHANGED, OTHER, CHANGED],
    2,
    25.0,
    0,
)
def test_the_forecast_keeps_every_limit_and_names_each_node_once(
    fleet: list[tuple[State, Idle | None, int | None, bool, str]], at_once: int, kw: float, proven: int
) -> None:
    """Power, canaries and runs under way included."""
    places = range(len(fleet))
    nodes = [node(f"n{at:02}", fleet[at][0], domain=f"pdu-{at % 2}") for at in places]
    idle = {f"n{at:02}": fleet[at][1] or IDLE for at in places}
    passes = {f"n{at:02}": passed(fleet[at][2]) for at in places}
    new = Signs(requested="its certificate holds no longer", change="driver 590.1", proven=proven)
    signs = {f"n{at:02}": new if fleet[at][4] else Signs() for at in places}
    leased = {f"n{at:02}" for at in places if fleet[at][3]}
    serving = [each for each in nodes if each.state in SERVING]
    limits = Limits(at_once / max(len(serving), 1), node_kw=10.0, domain_kw={"pdu-0": kw})
    tests, passed_over = forecast(Known(nodes, NOW, idle, passes, limits, signs=signs, leased=leased), hours=4.0)
    begun = {each.node: at for at, each in tests}
    assert len(begun) == len(tests)
    assert set(begun) | set(passed_over) == {each.name for each in serving}
    assert not set(begun) & set(passed_over)
    runs = {each.node: (at, at + datetime.timedelta(minutes=each.minutes)) for at, each in tests}
    runs |= {name: (NOW, NOW + datetime.timedelta(minutes=43.2)) for name in leased}
    of = {each.name: each for each in nodes}
    for at in set(begun.values()):
        running = [of[name] for name, (start, end) in runs.items() if start <= at < end]
        before = sum(of[name].state in SERVING for name in leased)
        assert sum(each.state in SERVING for each in running) <= max(at_once, before)
        drawn = 10.0 * sum(each.labels.get("power_domain") == "pdu-0" for each in running)
        before = 10.0 * sum(of[name].labels.get("power_domain") == "pdu-0" for name in leased)
        assert drawn <= max(kw, before)
        canaries = [each for each in running if signs[each.name] is new and each.name in begun]
        waited = [name for name in begun if signs[name] is new and runs[name][1] <= at]
        if proven + len(waited) < CANARIES:
            assert sum(each.state is State.PRODUCTION for each in canaries) <= CANARIES


def test_in_the_forecast_too_the_canaries_of_one_sku_do_not_hold_up_another() -> None:
    """Of ``a`` the tests are whole, so that its canaries take longer."""
    nodes = [dataclasses.replace(node(f"{sku}{at}"), sku=sku) for sku in "ab" for at in range(3)]
    names = [each.name for each in nodes]
    new = Signs(change="driver 590.1")
    signs = {name: dataclasses.replace(new, requested="revoked" if name[0] == "a" else "") for name in names}
    limits = Limits(1.0, minutes=16.0)
    tests, _ = forecast(
        Known(nodes, NOW, dict.fromkeys(names, IDLE), dict.fromkeys(names, passed(50)), limits, signs=signs)
    )
    begins = {planned.node: at for at, planned in tests}
    assert begins["b1"] == NOW
    assert NOW < begins["b2"] < begins["a2"]


def test_a_day_without_a_test_says_what_prevents_them() -> None:
    """Not that others come first."""
    nodes = [node("a"), node("b", State.REVALIDATION)]
    known = Known(nodes, NOW, {"a": IDLE}, {}, Limits(share=0.05))
    tests, passed_over = forecast(known, closed_at=lambda at: "no test at all")
    assert (tests, passed_over["b"]) == ([], "no test at all")
    full = dataclasses.replace(known, leased={"b"})
    tests, passed_over = forecast(full, hours=0.5)
    assert tests == []
    assert "1 of 2 nodes are being tested" in passed_over["a"]
