"""While the tests of a node are paused no run leases it to test it, and all else goes on."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.errors import BadDay, IllegalMove, NodeLeased, NodePaused, NoPerson, Refusal
from muster.model.nodes import Node
from muster.model.states import State
from muster.store.database import access
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"
SOON = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)


@pytest.fixture
def paused(fleet_db: str) -> Node:
    store.add_node(fleet.new_node())
    return store.pause_node(NODE, SOON, "Ada", "a technician is there")


def test_no_run_leases_it_to_test_it_until_a_person_resumes_it(paused: Node) -> None:
    store.add_node(fleet.new_node("gpu-0002"))
    for nodes in ([NODE], [NODE, "gpu-0002"]):
        with pytest.raises(NodePaused):
            store.acquire_leases(nodes, "dag", "run")
    assert store.live_leases() == [], "all of a block or none"
    resumed = store.resume_node(NODE, "Ben", "it is back")
    assert (resumed.pause, resumed.state) == (None, paused.state)
    assert store.acquire_lease(NODE, "dag", "run").node == NODE
    pausing, ending = store.node_events(NODE)[-2:]
    assert (pausing.actor, pausing.evidence["until"]) == ("Ada", SOON.isoformat())
    assert (ending.actor, ending.from_state, ending.to_state) == ("Ben", State.REGISTERED, State.REGISTERED)


@pytest.mark.usefixtures("paused")
def test_it_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "now", lambda: SOON)
    assert store.get_node(NODE).pause is None
    assert store.acquire_lease(NODE, "dag", "run").node == NODE
    with pytest.raises(IllegalMove) as refused:
        store.resume_node(NODE, "Ada", "late")
    assert refused.value.code is Refusal.NOT_PAUSED


def test_a_run_that_holds_the_node_goes_on_and_another_is_refused_as_ever() -> None:
    store.add_node(fleet.new_node())
    lease = store.acquire_lease(NODE, "dag", "one")
    store.pause_node(NODE, SOON, "Ada", "a technician is there")
    assert store.acquire_lease(NODE, "dag", "one") == lease
    with pytest.raises(NodeLeased):
        store.acquire_lease(NODE, "dag", "two")


@pytest.mark.usefixtures("paused")
def test_decisions_about_it_still_work() -> None:
    assert store.acquire_lease(NODE, "held_verdict", "run", decision=True).node == NODE
    store.release_leases("held_verdict", "run", "carried out")
    moved = store.move_node(NODE, State.QUARANTINE, "Ada", "smoke")
    assert (moved.state, moved.pause is not None) == (State.QUARANTINE, True)


def test_a_second_pause_replaces_the_first(paused: Node) -> None:
    longer = store.pause_node(NODE, SOON + datetime.timedelta(days=1), "Ben", "a customer has it")
    assert longer.pause is not None
    assert (longer.pause.person, longer.pause.until - SOON) == ("Ben", datetime.timedelta(days=1))


def test_it_needs_a_person_a_reason_and_a_day_to_come() -> None:
    store.add_node(fleet.new_node())
    for person, reason in (("root", "why"), ("Ada", " ")):
        with pytest.raises(NoPerson):
            store.pause_node(NODE, SOON, person, reason)
        with pytest.raises(NoPerson):
            store.resume_node(NODE, person, reason)
    with pytest.raises(BadDay):
        store.pause_node(NODE, access.now(), "Ada", "why")
    with pytest.raises(BadDay):
        store.end_of("soon")
    assert store.get_node(NODE).pause is None
