"""Which places are open after any history, and which node is proposed for each."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model.nodes import Node, Pause
from muster.model.replacing import Crossing, Fitness, Vacancy
from muster.model.states import State
from muster.rules.service import replacing as rules

NOW = datetime.datetime(2026, 5, 4, 12, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
H100, B200, ELSEWHERE = ("h100", False, "alpha"), ("b200", False, "alpha"), ("h100", False, "beta")
ADMITTED = Fitness(True, "7 stages passed; the gate admits it")


def node(name: str, state: State = State.QUALIFIED, sku: str = "h100", **labels: str) -> Node:
    return Node(name, name, 22, "", "", sku, state, {}, "~", "r", "", labels, False, NOW - 500 * HOUR)


def crossings(*steps: str, kind: tuple[str, bool, str] = H100) -> list[Crossing]:
    """ "-a": a leaves service; "+a": it enters; "+a:b": it enters in place of b."""
    split = [(step[0] == "+", *step[1:].partition(":")) for step in steps]
    return [Crossing(name, NOW + at * HOUR, entered, kind, gone) for at, (entered, name, _, gone) in enumerate(split)]


def open_after(*steps: str, broken: str = "abc") -> list[str]:
    states = dict.fromkeys(broken, State.QUARANTINE)
    return [each.node for each in rules.vacancies(crossings(*steps), states)]


def test_a_place_is_open_until_another_node_or_its_own_takes_it() -> None:
    assert open_after("-a") == ["a"]
    assert open_after("-a", "+x") == []
    assert open_after("-a", "+a", broken="") == []
    assert open_after("-a", "-b", "+x") == ["b"]
    # a was replaced by x, and comes back while b is away: it fills the place of b.
    assert open_after("-a", "+x", "-b", "+a", broken="b") == []


def test_a_place_that_is_not_open_any_more_takes_no_entry_from_one_that_is() -> None:
    # r left, is not broken, and stays out.
    assert open_after("-r", "-b", "+spare", broken="b") == []
    assert open_after("-r", "-b", "+spare:b", broken="b") == []
    assert open_after("-b", "-c", "+spare:c", broken="bc") == ["b"]
    assert open_after("-b", "+spare:a", broken="ab") == ["b"]
    assert open_after("-a", "-b", "+a", broken="b") == ["b"]
    assert open_after("-a", "-b", "+a:b", broken="b") == ["b"]


def test_a_node_on_its_way_back_has_no_place_to_fill() -> None:
    assert rules.vacancies(crossings("-a", "-b"), {"a": State.REGISTERED, "b": State.REPAIR}) == [
        Vacancy("b", NOW + HOUR)
    ]


@pytest.mark.parametrize("kind", [B200, ELSEWHERE], ids=["model", "cluster"])
def test_a_node_of_another_kind_fills_no_place(kind: tuple[str, bool, str]) -> None:
    other = dataclasses.replace(crossings("+x")[0], kind=kind)
    assert [each.node for each in rules.vacancies([*crossings("-a"), other], {"a": State.RMA})] == ["a"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("+-")), max_size=30))
def test_no_more_places_are_open_than_there_are_nodes_less_than_at_the_most(steps: list[tuple[str, str]]) -> None:
    serving, taken, most = {"a": True, "b": True, "c": False, "d": False}, [], 2
    for name, way in steps:  # only what can happen
        if serving[name] == (way == "-"):
            serving[name] = way == "+"
            taken.append(way + name)
            most = max(most, sum(serving.values()))
    broken = {name: State.TRIAGE for name, serves in serving.items() if not serves}
    found = [each.node for each in rules.vacancies(crossings(*taken), broken)]
    assert len(found) <= most - sum(serving.values())
    assert not {name for name in found if serving[name]}


def test_a_replacement_comes_from_the_same_block_then_the_same_pod_and_spares_first() -> None:
    gone = node("gone", State.QUARANTINE, block="b1", pod="p1")
    paused = dataclasses.replace(node("paused", block="b1"), pause=Pause("Ada", NOW + HOUR, "at work"))
    nodes = [
        node("far"), node("pod", block="b2", pod="p1"), node("block", block="b1", pod="p1"),
        node("spare", block="b1", spare="yes"), node("other", sku="b200", block="b1"), paused,
        node("serving", State.PRODUCTION, block="b1"),
        dataclasses.replace(node("simulated", block="b1"), simulated=True), node("fell", block="b1"),
    ]  # fmt: skip
    found = rules.candidates(gone, nodes, {"fell"})
    assert [each.name for each, _ in found] == ["spare", "block", "pod", "far"]
    assert len({where for _, where in found}) == 3


def test_a_node_of_another_cluster_s_scheduler_takes_no_place() -> None:
    found = rules.candidates(node("gone", State.REPAIR), [node("x"), node("y")], (), {"gone": "alpha", "y": "alpha"})
    assert [each.name for each, _ in found] == ["y"]


def test_each_place_gets_a_node_of_its_own_that_may_be_proposed() -> None:
    nodes = {name: node(name, State.QUARANTINE, block="b1") for name in ("g1", "g2", "g3")}
    nodes |= {name: node(name, block="b1") for name in ("refused", "s1", "s2")}
    asked = []

    def fitness(name: str) -> Fitness | None:
        asked.append(name)
        return None if name == "refused" else ADMITTED

    open_ = [Vacancy(name, NOW) for name in ("g1", "g2", "g3")]
    found = rules.proposals(open_, nodes, (), {}, fitness)
    assert [(each.gone.node, each.spare) for each in found] == [("g1", "s1"), ("g2", "s2")]
    assert len(asked) == len(set(asked))
