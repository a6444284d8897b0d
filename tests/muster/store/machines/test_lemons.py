"""A lemon enters production by a person's decision alone, until a person clears the mark or replaces the machine."""

from __future__ import annotations

import pytest

from muster import store
from muster.admission.entry import move
from muster.errors import IllegalMove, NoPerson, Refusal
from muster.model.states import State
from muster.rules.lifecycle.gate import Admit, NeedsPerson
from muster.rules.service import replacing
from muster_criteria.model import FaultClass
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")
NODE = "gpu-0001"


def open_points() -> tuple[str, ...]:
    decision = store.admission.decision(NODE)
    return decision.reasons if isinstance(decision, NeedsPerson) else ()


@pytest.mark.both_dialects
def test_the_gate_asks_a_person_until_the_mark_is_cleared() -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    before = open_points()
    marked = store.lemons.mark(NODE, "Ada", "third loss of gpu3")
    assert marked.lemon is not None
    assert (marked.lemon.person, marked.state) == ("Ada", State.QUALIFIED)
    assert [point for point in open_points() if point not in before] == [f"it is {marked.lemon}"]
    assert replacing.candidates(store.nodes.get(NODE), [marked], ()) == []
    cleared = store.lemons.clear(NODE, "Ben", "new board")
    assert (cleared.lemon, open_points()) == (None, before)
    marking, ending = store.nodes.events(NODE)[-2:]
    assert [(each.actor, each.evidence["lemon"]) for each in (marking, ending)] == [("Ada", True), ("Ben", False)]


def test_of_a_node_that_serves_nothing_is_asked_and_a_new_machine_is_no_lemon() -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    before = open_points()
    store.lemons.mark(NODE, "Ada", "it hangs")
    assert open_points() == before
    assert store.nodes.get(NODE).state is State.PRODUCTION
    for state in (State.QUARANTINE, State.TRIAGE, State.RMA):
        store.nodes.move(NODE, state, "Ada", "it goes back")
    assert store.nodes.get(NODE).lemon is not None
    store.adoption.replace(NODE, "Ada", "the new one is here", host_key=fleet.host_key("new"))
    assert store.nodes.get(NODE).lemon is None


def test_it_needs_a_person_a_reason_and_a_mark_to_clear() -> None:
    store.nodes.add(fleet.new_node())
    for person, reason in (("root", "why"), ("Ada", " ")):
        with pytest.raises(NoPerson):
            store.lemons.mark(NODE, person, reason)
    with pytest.raises(IllegalMove) as refused:
        store.lemons.clear(NODE, "Ada", "why")
    assert refused.value.code is Refusal.NOT_MARKED


@pytest.mark.both_dialects
def test_normal_use_stops_at_the_score_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    for number in range(2):
        move(NODE, State.PRODUCTION, "Ada", "needed now")
        fleet.fail(NODE, f"later-{number}", fleet.finding(fault_class=FaultClass.HBM), stage="integrity")
        for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
            store.nodes.move(NODE, state, "Ada", "reset")
        fleet.qualify(NODE, f"again-{number}")
    without = open_points()
    monkeypatch.setenv("MUSTER_LEMON_SCORE", "3")
    assert open_points() == without
    monkeypatch.setenv("MUSTER_LEMON_SCORE", "1.9")
    (more,) = [point for point in open_points() if point not in without]
    assert "memory 2" in more
    assert not isinstance(store.admission.decision(NODE), Admit)
