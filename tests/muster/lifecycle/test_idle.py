"""Who is tested again: idle nodes only, stalest first, a bounded share, and in doubt nobody."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st

from muster.lifecycle.selection import Idle, choose
from muster.lifecycle.transitions import State
from muster.records import NodeRecord

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
IDLE = Idle(True)


def node(name: str, state: State = State.PRODUCTION, rack: str = "") -> NodeRecord:
    return NodeRecord(name, "h", 22, "", "", "sku", state, {}, "~", rack, "", {}, False, NOW)


FLEETS = st.lists(
    st.tuples(
        st.sampled_from([State.PRODUCTION, State.PRODUCTION, State.PRODUCTION, *State]),
        st.sampled_from([IDLE, IDLE, Idle(False, "job 7"), Idle(False), None]),
        st.sampled_from([None, 0, 1, 50, 200]),
        st.sampled_from([False, False, False, True]),
        st.sampled_from(["", "", "too hot"]),
    ),
    max_size=60,
)


@given(FLEETS, st.floats(0, 1), st.sampled_from([0, 24, 100]))
def test_whom_it_chooses(
    fleet: list[tuple[State, Idle | None, int | None, bool, str]], share: float, after: int
) -> None:
    nodes = [node(f"n{place}", each[0], each[4]) for place, each in enumerate(fleet)]
    idle = {f"n{place}": each[1] for place, each in enumerate(fleet) if each[1] is not None}
    passed = {f"n{place}": NOW - each[2] * HOUR for place, each in enumerate(fleet) if each[2] is not None}
    leased = {f"n{place}" for place, each in enumerate(fleet) if each[3]}
    choice = choose(
        nodes, NOW, idle, passed, share=share, after=after * HOUR, leased=leased, barred=lambda node: node.rack
    )
    service = [each for each in nodes if each.state in (State.PRODUCTION, State.REVALIDATION)]
    out = [each for each in service if each.name in leased or each.state is State.REVALIDATION]

    def may(each: NodeRecord) -> bool:
        said, last = idle.get(each.name), passed.get(each.name)
        return (
            each.state is State.PRODUCTION and each.name not in leased and said is not None and said.idle
            and not each.rack and (last is None or NOW - last >= after * HOUR)
        )  # fmt: skip

    eligible = [each.name for each in service if may(each)]
    stalest = sorted(
        eligible, key=lambda name: (passed.get(name, datetime.datetime.min.replace(tzinfo=datetime.UTC)), name)
    )
    assert list(choice.chosen) == stalest[: len(choice.chosen)]
    # Bounded, and not idle itself: whoever may be tested is, up to the share.
    most = max(1, int(len(service) * share))
    assert len(choice.chosen) == min(len(eligible), max(0, most - len(out)))
    assert set(choice.chosen) | set(choice.passed_over) == {each.name for each in service}
    assert not set(choice.chosen) & set(choice.passed_over)
    assert all(choice.passed_over.values())


def test_one_at_a_time_in_a_small_fleet_and_never_none_for_ever() -> None:
    nodes = [node("a"), node("b")]
    idle = {"a": IDLE, "b": IDLE}
    choice = choose(nodes, NOW, idle, {"a": NOW - HOUR}, share=0.05)
    assert choice.chosen == ("b",)
    assert choice.passed_over == {"a": "1 of 2 nodes are being tested, which is the limit"}
    assert choose(nodes, NOW, idle, {}, share=0.05, leased={"a"}).chosen == ()
    nodes = [node("a", State.REVALIDATION), node("b")]
    assert choose(nodes, NOW, idle, {}, share=0.05).chosen == ()


def test_a_breaker_bars_and_is_quoted() -> None:
    choice = choose([node("a", rack="r1"), node("b", rack="r2")], NOW, {"a": IDLE, "b": IDLE}, {}, share=1,
                    barred=lambda each: "three of rack r1 failed today" if each.rack == "r1" else "")  # fmt: skip
    assert choice.chosen == ("b",)
    assert choice.passed_over == {"a": "three of rack r1 failed today"}
