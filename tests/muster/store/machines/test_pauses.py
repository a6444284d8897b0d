"""While the tests of a node are paused no run leases it to test it, and all else goes on."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.errors import BadDay, IllegalMove, NodeLeased, NodePaused, NoPerson, Refusal
from muster.model.nodes import Node
from muster.model.runs import RunKey
from muster.model.states import State
from muster.store.database import access
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"
SOON = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)


@pytest.fixture
def paused(fleet_db: str) -> Node:
    store.nodes.add(fleet.new_node())
    return store.pauses.pause(NODE, SOON, "Ada", "a technician is there")


def test_no_run_leases_it_to_test_it_until_a_person_resumes_it(paused: Node) -> None:
    store.nodes.add(fleet.new_node("gpu-0002"))
    for nodes in ([NODE], [NODE, "gpu-0002"]):
        with pytest.raises(NodePaused):
            store.leases.acquire_all(nodes, RunKey("dag", "run"))
    assert store.leases.live() == [], "all of a block or none"
    resumed = store.pauses.resume(NODE, "Ben", "it is back")
    assert (resumed.pause, resumed.state) == (None, paused.state)
    assert store.leases.acquire(NODE, RunKey("dag", "run")).node == NODE
    pausing, ending = store.nodes.events(NODE)[-2:]
    assert (pausing.actor, pausing.evidence["until"]) == ("Ada", SOON.isoformat())
    assert (ending.actor, ending.from_state, ending.to_state) == ("Ben", State.REGISTERED, State.REGISTERED)


@pytest.mark.usefixtures("paused")
def test_it_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "now", lambda: SOON)
    assert store.nodes.get(NODE).pause is None
    assert store.leases.acquire(NODE, RunKey("dag", "run")).node == NODE
    with pytest.raises(IllegalMove) as refused:
        store.pauses.resume(NODE, "Ada", "late")
    assert refused.value.code is Refusal.NOT_PAUSED


def test_a_run_that_holds_the_node_goes_on_and_another_is_refused_as_ever() -> None:
    store.nodes.add(fleet.new_node())
    lease = store.leases.acquire(NODE, RunKey("dag", "one"))
    store.pauses.pause(NODE, SOON, "Ada", "a technician is there")
    assert store.leases.acquire(NODE, RunKey("dag", "one")) == lease
    with pytest.raises(NodeLeased):
        store.leases.acquire(NODE, RunKey("dag", "two"))


@pytest.mark.usefixtures("paused")
def test_decisions_about_it_still_work() -> None:
    assert store.leases.acquire(NODE, RunKey("held_verdict", "run"), decision=True).node == NODE
    store.leases.release(RunKey("held_verdict", "run"), "carried out")
    moved = store.nodes.move(NODE, State.QUARANTINE, "Ada", "smoke")
    assert (moved.state, moved.pause is not None) == (State.QUARANTINE, True)


def test_a_second_pause_replaces_the_first(paused: Node) -> None:
    longer = store.pauses.pause(NODE, SOON + datetime.timedelta(days=1), "Ben", "a customer has it")
    assert longer.pause is not None
    assert (longer.pause.person, longer.pause.until - SOON) == ("Ben", datetime.timedelta(days=1))


def test_it_needs_a_person_a_reason_and_a_day_to_come() -> None:
    store.nodes.add(fleet.new_node())
    for person, reason in (("root", "why"), ("Ada", " ")):
        with pytest.raises(NoPerson):
            store.pauses.pause(NODE, SOON, person, reason)
        with pytest.raises(NoPerson):
            store.pauses.resume(NODE, person, reason)
    with pytest.raises(BadDay):
        store.pauses.pause(NODE, access.now(), "Ada", "why")
    for day in ("soon", "9999-12-31"):
        with pytest.raises(BadDay):
            store.waivers.end_of(day)
    assert store.nodes.get(NODE).pause is None
