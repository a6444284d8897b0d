"""Which idle nodes are tested: within every limit, the overdue first, and in doubt none."""

from __future__ import annotations

import collections
import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model.failures import Failure
from muster.model.nodes import Node, Pause
from muster.model.states import State
from muster.rules.idle import worth
from muster.rules.idle.capacity import CANARIES, Limits, Signs
from muster.rules.idle.forecast import forecast
from muster.rules.idle.history import GROUPS
from muster.rules.idle.selection import Idle, Known, choose, facts_of
from muster_criteria.stages import STAGES
from tests.muster.rules.idle.fleets import ALL, FLEETS, HOUR, IDLE, NOW, at_risk, failure, node, passed


@given(FLEETS, st.floats(0, 1, exclude_min=True), st.sampled_from([0, 24, 100]), st.sampled_from([20.0, 45.0]))
def test_which_nodes_are_chosen(
    fleet: list[tuple[State, Idle | None, int | None, bool, str]], share: float, after: int, minutes: float
) -> None:
    nodes = [node(f"n{place}", each[0], each[4]) for place, each in enumerate(fleet)]
    idle = {f"n{place}": each[1] for place, each in enumerate(fleet) if each[1] is not None}
    passes = {f"n{place}": passed(each[2]) for place, each in enumerate(fleet)}
    leased = {f"n{place}" for place, each in enumerate(fleet) if each[3]}
    limits = Limits(share, minutes, after * HOUR)
    choice = choose(Known(nodes, NOW, idle, passes, limits, leased=leased, barred=lambda each: each.rack))
    service = [each for each in nodes if each.state in (State.PRODUCTION, State.REVALIDATION)]
    under_test = [each for each in service if each.name in leased]
    waiting = [each.name for each in service if each.name not in leased and each.state is State.REVALIDATION]

    def may(each: Node) -> bool:
        last = max(passes[each.name].values(), default=None)
        return (
            each.state is State.PRODUCTION and each.name not in leased and idle.get(each.name, Idle(False)).idle
            and not each.rack and (last is None or NOW - last >= after * HOUR)
        )  # fmt: skip

    eligible = {each.name for each in service if may(each)}
    picked = [each.node for each in choice.chosen]
    chosen = [name for name in picked if name not in waiting]
    assert set(chosen) <= eligible
    # Bounded, and not idle itself: a node that may be tested is, up to the share; those that wait come first.
    room = max(0, max(1, int(len(service) * share)) - len(under_test))
    assert set(picked) - set(chosen) <= set(waiting)
    assert len(picked) - len(chosen) == min(len(waiting), room)
    assert picked[len(picked) - len(chosen) :] == chosen
    assert len(chosen) == min(len(eligible), max(0, room - len(waiting)))
    assert set(picked) | set(choice.passed_over) == {each.name for each in service}
    assert not set(picked) & set(choice.passed_over)
    assert all(choice.passed_over.values())
    for each in choice.chosen:
        assert each.stages == STAGES or each.minutes <= minutes
        assert each.stages[0] == "intake"
        assert 0.0 <= each.suspicion <= 1.0
    assert all(each.stages == STAGES for each in choice.chosen[: len(picked) - len(chosen)])


def test_a_paused_node_that_is_out_of_service_takes_no_others_turn() -> None:
    pause = Pause("Ada", NOW + HOUR, "the rack is rebuilt")
    nodes = [dataclasses.replace(node("a", State.REVALIDATION), pause=pause), node("b")]
    idle = {"a": IDLE, "b": IDLE}
    assert [each.node for each in choose(Known(nodes, NOW, idle, {}, Limits(share=0.05))).chosen] == ["b"]
    assert choose(Known(nodes, NOW, idle, {}, Limits(share=0.05), leased={"a"})).chosen == ()


def test_one_at_a_time_in_a_small_fleet_and_never_none_for_ever() -> None:
    nodes = [node("a"), node("b")]
    idle = {"a": IDLE, "b": IDLE}
    few = Limits(share=0.05)
    choice = choose(Known(nodes, NOW, idle, {"a": passed(1), "b": passed(9)}, few))
    assert [each.node for each in choice.chosen] == ["b"]
    assert choice.passed_over == {"a": "1 of 2 nodes are being tested, which is the limit"}
    assert choose(Known(nodes, NOW, idle, {}, few, leased={"a"})).chosen == ()
    (waiting,) = choose(Known([node("a", State.REVALIDATION), node("b")], NOW, idle, {}, few)).chosen
    assert (waiting.node, waiting.stages) == ("a", STAGES)
    assert choose(Known([node("a", State.REVALIDATION), node("b")], NOW, idle, {}, few, leased={"a"})).chosen == ()


@pytest.mark.parametrize(
    "failures", [(failure("b"),), (failure("b", days=40.0),), (failure("b", replaced=True),), (failure("beside"),)]
)
def test_a_node_that_failed_or_whose_neighbour_did_comes_first(failures: tuple[Failure, ...]) -> None:
    """A returned node does not count as clean, with a new part neither."""
    nodes = [node("a", rack="r1"), node("b", rack="r2"), node("beside", State.REPAIR, rack="r2")]
    first, second = choose(at_risk(nodes, *failures)).chosen
    assert first.node == "b"
    assert first.suspicion > second.suspicion


def test_the_longer_a_node_has_been_back_the_less_it_is_suspected() -> None:
    nodes = [node(name) for name in "abcd"]
    days = zip("bcd", (2.0, 20.0, 120.0), strict=True)
    chosen = choose(at_risk(nodes, *(failure(name, days=each) for name, each in days))).chosen
    assert [each.node for each in chosen] == ["b", "c", "d", "a"]


def test_the_same_group_returns() -> None:
    nodes = [node("a"), node("b")]
    known = at_risk(nodes, failure("b", "memory", 20.0))
    assert known.risk is not None
    usual, worse = sum(count for _, count in worth.hidden(facts_of(nodes, known), known.risk.model))
    ratio = dict(zip(GROUPS, worse / usual, strict=True))
    assert ratio["memory"] > ratio["compute"] > 1.0


def test_a_fleet_whose_repairs_hold_learns_it() -> None:
    """Thirty came back and did not fail again for months: the records' factors shrink towards what the fleet shows."""
    nodes = [node(f"n{at}") for at in range(60)]
    few = at_risk(nodes, failure("n0", days=2.0)).risk
    many = at_risk(nodes, *(failure(f"n{at}", days=100.0 + at) for at in range(30)), failure("n40", days=2.0)).risk
    assert few is not None
    assert many is not None
    assert many.model.since_any[2] < few.model.since_any[2]


def test_the_score_has_half_of_the_minutes_whatever_is_overdue() -> None:
    """Else, where whole tests are due as often as there is time for, risk would decide nothing."""
    fleet = [node(f"n{at:02}") for at in range(40)]
    names = [each.name for each in fleet]
    passes = {name: passed(700 if at < 30 else 48) for at, name in enumerate(names)}
    limits = Limits(share=0.1, minutes=45.0)
    tests, _ = forecast(Known(fleet, NOW, dict.fromkeys(names, IDLE), passes, limits), hours=6.0)
    late = sum(each.minutes for _, each in tests if "overdue" in each.why)
    assert 0.35 <= late / sum(each.minutes for _, each in tests) <= 0.65


def test_nodes_of_which_a_stage_never_passes_leave_the_others_their_turn() -> None:
    """Each test of some ends with a warning or PROVISIONAL in one stage, which is a test of it all the same."""
    fleet = [node(f"n{at:02}") for at in range(20)]
    idle = {each.name: IDLE for each in fleet}
    tested = {each.name: passed(None if at < 7 else 216) for at, each in enumerate(fleet)}
    limits = Limits(share=0.05, minutes=45.0, after=4 * HOUR, whole_after=7 * 24 * HOUR)
    taken: collections.Counter[str] = collections.Counter()
    for hour in range(7 * 24):
        now = NOW + hour * HOUR
        for each in choose(Known(fleet, now, idle, tested, limits)).chosen:
            taken[each.node] += each.stages == STAGES
            tested[each.node] = tested[each.node] | dict.fromkeys(each.stages, now)
    assert min(taken[each.name] for each in fleet) >= 1
    assert max(taken[each.name] for each in fleet) <= 2


def test_a_node_of_which_a_stage_never_has_a_result_leaves_the_others_their_turn() -> None:
    """As one in shadow mode, which serves on and of which no inconclusive test is counted."""
    fleet = [dataclasses.replace(node("chronic"), shadow=True), *(node(f"n{at:02}") for at in range(20))]
    idle = {each.name: IDLE for each in fleet}
    tested = {each.name: passed(216) for each in fleet}
    del tested["chronic"]["burn_in"]
    in_vain = {"burn_in": NOW}
    limits = Limits(share=0.05, minutes=45.0, after=4 * HOUR, whole_after=7 * 24 * HOUR)
    whole: collections.Counter[str] = collections.Counter()
    for hour in range(7 * 24):
        now = NOW + hour * HOUR
        signs = {"chronic": Signs(in_vain=dict(in_vain))}
        for each in choose(Known(fleet, now, idle, tested, limits, signs=signs)).chosen:
            whole[each.node] += each.stages == STAGES
            tested[each.node] = tested[each.node] | dict.fromkeys(each.stages, now)
            if tested["chronic"].pop("burn_in", None):
                in_vain["burn_in"] = now
    assert whole["chronic"] <= 2
    assert min(whole[each.name] for each in fleet[1:]) >= 1


@pytest.mark.parametrize("how", ["inconclusive", "skipped", "shadow"])
def test_requested_tests_that_never_have_a_result_leave_half_of_the_places_to_others(how: str) -> None:
    """As on nodes whose new image lacks what a probe needs; a person is asked about them already."""
    asked = [node(f"asked{at}") for at in range(6)]
    asked = [
        dataclasses.replace(each, inconclusive=3 * (how == "inconclusive"), shadow=how == "shadow") for each in asked
    ]
    fleet = [*asked, *(node(f"n{at:02}") for at in range(14))]
    idle = {each.name: IDLE for each in fleet}
    tested = {each.name: passed(50) for each in fleet}
    sign = Signs(requested="requested: new image", skipped=3 * (how == "skipped"))
    signs = {each.name: dataclasses.replace(sign, answered=True, in_vain=dict.fromkeys(STAGES, NOW)) for each in asked}
    taken: collections.Counter[str] = collections.Counter()
    for turn in range(96):
        now = NOW + turn * 0.75 * HOUR
        (each,) = choose(Known(fleet, now, idle, tested, Limits(share=0.05, minutes=45.0), signs=signs)).chosen
        taken[each.node] += 1
        if each.node in signs:
            assert each.stages == STAGES
            in_vain = dict.fromkeys(STAGES, now)
            signs[each.node] = dataclasses.replace(signs[each.node], in_vain=in_vain)
        else:
            tested[each.node] = tested[each.node] | dict.fromkeys(each.stages, now)
    of_asked = [taken[each.name] for each in asked]
    assert min(of_asked) >= 1
    assert max(of_asked) - min(of_asked) <= 2
    assert sum(of_asked) <= 96 / 2


def test_requested_tests_without_a_result_that_run_already_count_as_their_half() -> None:
    asked = [dataclasses.replace(node(f"asked{at}"), inconclusive=3) for at in range(4)]
    fleet = [*asked, *(node(f"n{at:02}") for at in range(16))]
    in_vain = dict.fromkeys(STAGES, NOW - HOUR)
    signs = {each.name: Signs(requested="requested: new image", answered=True, in_vain=in_vain) for each in asked}
    idle, tested = {each.name: IDLE for each in fleet}, {each.name: passed(50) for each in fleet}
    limits = Limits(share=0.2, minutes=45.0)
    choice = choose(Known(fleet, NOW, idle, tested, limits, signs=signs, leased={"asked0", "asked1"}))
    assert [each.node in signs for each in choice.chosen] == [False, False]


def test_a_test_takes_the_minutes_of_the_nodes_model_at_the_level() -> None:
    """No longer than an idle node stays free, but for whole tests that are overdue, requested or bring a node back."""
    long = dict.fromkeys(STAGES, 60.0)
    waits = node("waits", State.REVALIDATION)
    large = [dataclasses.replace(each, sku="large") for each in (node("due"), node("asked"), node("fresh"), waits)]
    fleet = [*large, node("usual")]
    tested = {each.name: passed(700 if each.name == "due" else 50) for each in fleet}
    known = Known(fleet, NOW, {each.name: IDLE for each in fleet}, tested, Limits(share=1.0, minutes=45.0),
                  signs={"asked": Signs(requested="requested: ECC?")}, minutes={"large": long})  # fmt: skip
    chosen = {each.node: each for each in choose(known).chosen}
    assert {name: each.minutes for name, each in chosen.items() if name != "usual"} == dict.fromkeys(
        ("waits", "asked", "due"), 300.0
    )
    assert chosen["usual"].minutes <= 45.0
    assert set(choose(known).passed_over) == set(forecast(known)[1]) == {"fresh"}


def test_a_test_that_is_requested_is_whole_and_comes_before_the_overdue() -> None:
    passes = {"a": passed(9000), "b": passed(1)}
    signs = {"b": Signs(requested="its certificate holds no longer")}
    first = choose(Known([node("a"), node("b")], NOW, {"a": IDLE, "b": IDLE}, passes, ALL, signs=signs)).chosen[0]
    assert (first.node, first.stages) == ("b", STAGES)


def test_a_node_that_returns_from_long_idle_takes_the_whole_test_at_once() -> None:
    """Whatever ended it: an outage, a power saver, a job of weeks. Its passes are as old as its last contact."""
    away = dataclasses.replace(node("b"), contact_at=NOW - 700 * HOUR)
    fleet = [dataclasses.replace(node("a"), contact_at=NOW - 30 * HOUR), away]
    first, second = choose(
        Known(fleet, NOW, dict.fromkeys("ab", IDLE), {"a": passed(30), "b": passed(700)}, ALL)
    ).chosen
    assert (first.node, first.stages) == ("b", STAGES)
    assert "29.2 days without contact" in first.why
    assert "without contact" not in second.why


def test_a_request_since_the_tests_without_a_result_is_carried_out_first() -> None:
    """A person removed the cause, and asks again: these tests do not answer that."""
    again = dataclasses.replace(node("b"), inconclusive=3)
    sign = Signs(requested="requested: new cable", in_vain=dict.fromkeys(STAGES, NOW - HOUR))
    passes = {"a": passed(9000), "b": passed(50)}
    first = choose(Known([node("a"), again], NOW, dict.fromkeys("ab", IDLE), passes, ALL, signs={"b": sign})).chosen[0]
    assert (first.node, first.stages) == ("b", STAGES)


@pytest.mark.parametrize(("skipped", "first"), [(0, "a"), (1, "b"), (2, "b"), (3, "a")])
def test_a_node_whose_test_was_preempted_comes_sooner_a_few_times(skipped: int, first: str) -> None:
    """A stage that passed before the preemption gives it no rest; a node that is always taken back blocks no other."""
    passes = {"a": passed(50), "b": passed(50) | {"intake": NOW}}
    limits = Limits(1.0, after=4 * HOUR)
    signs = {"b": Signs(skipped=skipped)}
    found = choose(Known([node("a"), node("b")], NOW, dict.fromkeys("ab", IDLE), passes, limits, signs=signs)).chosen
    assert [each.node for each in found] == ([first, "a"] if first == "b" else ["a"])


@pytest.mark.parametrize(
    ("inconclusive", "skipped", "first"), [(0, 0, "a"), (1, 0, "b"), (2, 0, "b"), (3, 0, "a"), (1, 3, "a")]
)
def test_a_node_whose_test_was_inconclusive_comes_sooner_a_few_times(
    inconclusive: int, skipped: int, first: str
) -> None:
    nodes = [node("a"), dataclasses.replace(node("b"), inconclusive=inconclusive)]
    passes = {"a": passed(50), "b": passed(50) | {"intake": NOW}}
    signs = {"b": Signs(skipped=skipped, in_vain={"integrity": NOW})}
    limits = Limits(1.0, after=4 * HOUR)
    found = choose(Known(nodes, NOW, dict.fromkeys("ab", IDLE), passes, limits, signs=signs)).chosen
    assert found[0].node == first


@pytest.mark.parametrize(("minutes", "whole"), [(math.inf, False), (45.0, True)])
def test_what_had_no_result_is_tested_again_and_not_another_stage(minutes: float, whole: bool) -> None:
    """At such a level, ``intake`` and ``performance`` alone fit into the minutes, and say nothing of the rest."""
    nodes = [node("a"), dataclasses.replace(node("b"), inconclusive=1)]
    passes = {"a": passed(50), "b": passed(500) | dict.fromkeys(("integrity", "intake"), NOW - 50 * HOUR)}
    took = dict.fromkeys(STAGES, 100.0) | {"intake": 5.0, "performance": 5.0}
    known = Known(nodes, NOW, dict.fromkeys("ab", IDLE), passes, Limits(1.0, minutes, after=4 * HOUR),
                  signs={"b": Signs(in_vain={"integrity": NOW}, took=STAGES)}, minutes={"sku": took})  # fmt: skip
    again = choose(known).chosen[0]
    assert (again.node, "integrity" in again.stages, again.stages == STAGES) == ("b", True, whole)


@pytest.mark.parametrize(
    ("proven", "in_test", "chosen"), [(0, 0, 2), (0, 1, 1), (0, 2, 0), (1, 0, 1), (1, 1, 0), (2, 0, 4), (2, 3, 1)]
)
def test_new_firmware_is_tested_on_canaries_first(proven: int, in_test: int, chosen: int) -> None:
    """Two nodes pass before the others that have the same are taken; what runs on other nodes does not wait."""
    nodes = [node(f"n{at}", State.REVALIDATION if at < in_test else State.PRODUCTION) for at in range(4)]
    nodes.append(node("other"))
    new = Signs(requested="its certificate holds no longer", change="driver 590.1", proven=proven)
    signs = {f"n{at}": new for at in range(4)}
    idle, tested = dict.fromkeys((each.name for each in nodes), IDLE), {f"n{at}" for at in range(in_test)}
    choice = choose(Known(nodes, NOW, idle, {}, ALL, signs=signs, leased=tested))
    picked = [each.node for each in choice.chosen]
    assert len([name for name in picked if name != "other"]) == chosen
    assert "other" in picked


def test_canaries_of_one_sku_do_not_hold_up_another() -> None:
    """Each has a firmware of its own: two proved it on theirs, and are tested in numbers."""
    new = Signs(requested="its certificate holds no longer", change="driver 590.1", proven=CANARIES)
    signs = {"a": new, "b": new, "c": dataclasses.replace(new, proven=0)}
    nodes = [node("a"), node("b"), dataclasses.replace(node("c"), sku="other")]
    choice = choose(Known(nodes, NOW, dict.fromkeys("abc", IDLE), {}, ALL, signs=signs, leased={"a", "b"}))
    assert [each.node for each in choice.chosen] == ["c"]


def test_power_and_blackouts_are_limits() -> None:
    nodes = [node(name, domain="pdu-1" if name != "c" else "") for name in "abc"]
    idle = dict.fromkeys("abc", IDLE)
    limits = Limits(share=1.0, node_kw=10.0, domain_kw={"pdu-1": 15.0})
    choice = choose(Known(nodes, NOW, idle, {}, limits))
    assert [each.node for each in choice.chosen] == ["a", "c"]
    assert "pdu-1" in choice.passed_over["b"]
    shut = choose(Known(nodes, NOW, idle, {}, dataclasses.replace(limits, closed="no test now")))
    assert (shut.chosen, set(shut.passed_over.values())) == ((), {"no test now"})


@pytest.mark.parametrize("busy", [State.REVALIDATION, State.BURN_IN])
def test_every_test_draws_power_and_no_limit_spares_a_node_that_waits(busy: State) -> None:
    """A new node under load draws as much as one in service, and blackouts hold for what waits in revalidation too."""
    nodes = [node("a", busy, domain="pdu-1"), node("b", State.REVALIDATION, domain="pdu-1"), node("c")]
    limits = Limits(share=1.0, node_kw=10.0, domain_kw={"pdu-1": 15.0})
    choice = choose(Known(nodes, NOW, {}, {}, limits, leased={"a"}))
    assert choice.chosen == ()
    assert "pdu-1" in choice.passed_over["b"]
    shut = choose(Known(nodes[1:], NOW, {}, {}, dataclasses.replace(limits, closed="no test now")))
    assert (shut.chosen, shut.passed_over["b"]) == ((), "no test now")


def test_new_nodes_that_wait_for_a_slot_draw_no_power() -> None:
    """A large delivery waits for weeks; what one of them does not draw is not given back at its end either."""
    nodes = [node("new", State.REGISTERED, domain="pdu-1"), node("a", domain="pdu-1"), node("b", domain="pdu-1")]
    idle, passes = dict.fromkeys("ab", IDLE), dict.fromkeys("ab", passed(48))
    limits = Limits(share=1.0, minutes=45.0, node_kw=10.0, domain_kw={"pdu-1": 15.0})
    known = Known(nodes, NOW, idle, passes, limits, leased={"new"}, queued={"new"})
    assert len(choose(known).chosen) == 1
    tests, _ = forecast(known)
    assert len({at for at, _ in tests}) == len(tests) == 2
    assert choose(dataclasses.replace(known, queued=())).chosen == ()


def test_a_node_whose_test_was_refused_leaves_its_place_to_another() -> None:
    signs = {"b": Signs(requested="it is requested", refused="not tested: its SKU is unknown")}
    for state in (State.PRODUCTION, State.REVALIDATION):
        fleet = [node("a"), node("c"), node("b", state)]
        idle = {each.name: IDLE for each in fleet}
        choice = choose(Known(fleet, NOW, idle, {}, Limits(share=0.05), signs=signs))
        assert len(choice.chosen) == 1
        assert choice.passed_over["b"] == signs["b"].refused


@pytest.mark.parametrize("change", ["", "driver 590.1"])
def test_nodes_out_of_service_whose_tests_are_refused_take_no_others_turn(change: str) -> None:
    """A user's job may keep them for days; of a new driver they are no canaries either, since nothing tests them."""
    refused = Signs(refused="not tested: job 4711 of alice", change=change)
    waiting = [node(f"w{at}", State.REVALIDATION) for at in range(CANARIES)]
    fleet = [*waiting, *(node(f"n{at}") for at in range(20))]
    signs = dict.fromkeys((each.name for each in fleet), Signs(change=change))
    signs |= {each.name: refused for each in waiting}
    idle = {each.name: IDLE for each in fleet}
    known = Known(fleet, NOW, idle, {}, Limits(share=0.05), signs=signs)
    (chosen,) = choose(known).chosen
    assert chosen.node.startswith("n")
    assert {each.name: forecast(known)[1][each.name] for each in waiting} == {w.name: refused.refused for w in waiting}


def test_a_paused_node_is_passed_over_with_the_pause_as_reason_whatever_is_due() -> None:
    pause = Pause("Ada", NOW + HOUR, "a technician is there")
    nodes = [
        dataclasses.replace(node("a"), pause=pause),
        dataclasses.replace(node("b", State.REVALIDATION), pause=pause),
        node("c"),
    ]
    idle, signs = dict.fromkeys("abc", IDLE), {"a": Signs(requested="requested: ECC?")}
    choice = choose(Known(nodes, NOW, idle, {}, ALL, signs=signs))
    assert [each.node for each in choice.chosen] == ["c"]
    assert all(str(pause) in choice.passed_over[name] for name in "ab")
    tests, passed_over = forecast(Known(nodes, NOW, idle, {}, ALL, signs=signs))
    assert ([planned.node for _, planned in tests], set(passed_over)) == (["c"], {"a", "b"})
