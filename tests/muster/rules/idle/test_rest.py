"""How long an idle node rests after a test."""

from __future__ import annotations

import dataclasses

import pytest

from muster.errors import BadSettings
from muster.rules.idle.capacity import Limits, Signs
from muster.rules.idle.selection import Known, choose
from muster.settings import settings
from muster_criteria.stages import STAGES
from tests.muster.rules.idle.fleets import HOUR, IDLE, NOW, node, passed


@pytest.mark.parametrize(
    ("nodes", "share", "after", "took", "rest"),
    [
        (200, 0.01, 4.0, STAGES, 4.0),
        (3, 0.01, 4.0, STAGES, 60.0),
        (3, 0.01, 4.0, ("intake", "performance"), 15.0),
        (3, 0.0005, 4.0, STAGES, 28 * 24.0),
        (3, 0.5, 4.0, STAGES, 4.0),
        (3, 0.1, 0.0, STAGES, 0.0),
    ],
)
def test_a_node_rests_after_a_test_and_in_a_small_fleet_until_tests_take_no_more_than_the_share(
    nodes: int, share: float, after: float, took: tuple[str, ...], rest: float
) -> None:
    """Without the rest, three nodes would be under test for seven hours a day each."""
    fleet = [node(f"n{at}") for at in range(nodes)]
    minutes = {"sku": dict.fromkeys(STAGES, 9.0) | {"intake": 2.0, "performance": 7.0}}

    def chosen(hours: float) -> bool:
        passes = {each.name: passed(900.0) | dict.fromkeys(took, NOW - hours * HOUR) for each in fleet}
        known = Known(fleet, NOW, {each.name: IDLE for each in fleet}, passes, Limits(share, 45.0, after * HOUR),
                      signs={each.name: Signs(took=took) for each in fleet}, minutes=minutes)  # fmt: skip
        return bool(choose(known).chosen)

    assert chosen(rest + 0.01)
    assert not rest or not chosen(rest - 0.01)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("in_vain", [True, False])
@pytest.mark.parametrize("person", [True, False])
@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("ago", [1, 5])
def test_a_node_rests_after_each_test_but_for_a_person_whom_no_test_has_answered(
    ago: int, answered: bool, person: bool, in_vain: bool, whole: bool
) -> None:
    """Whatever keeps a node from passing, or is reported of it, it does not take the only place again and again. What
    is reported after a test of some stages, which may not see it, does not wait.
    """
    ended = NOW - ago * HOUR
    missing = dict.fromkeys(STAGES, ended) if in_vain else {}
    sign = Signs("it is requested", answered=answered, in_vain=missing, took=STAGES if whole else STAGES[:1])
    idle = {"a": IDLE, "b": dataclasses.replace(IDLE, requested="Ada" if person else "")}
    passes = {"b": passed(900 if in_vain else ago)}
    known = Known([node("a"), node("b")], NOW, idle, passes, Limits(1.0, after=4 * HOUR), signs={"b": sign})
    rests = ago < 4 and (answered or (whole and not person))
    assert [each.node for each in choose(known).chosen] == (["a"] if rests else ["b", "a"])


def test_a_share_of_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node is tested at any share, and a smaller one only makes nodes rest longer: none has no meaning."""
    monkeypatch.setenv("MUSTER_REVALIDATION_SHARE", "0")
    with pytest.raises(BadSettings):
        settings()
