"""An incident goes with its part: a GPU that was not repaired enters service in no other node."""

from __future__ import annotations

import pytest

from muster import store
from muster.model.attention import Turn
from muster.model.repairs import Bundle, Fault, Incident, Outcome
from muster.model.runs import RunKey
from muster.model.states import State
from muster.rules.lifecycle.gate import NeedsPerson
from muster.store.database.engine import writing
from muster.store.machines import parts
from tests.muster import fleet

pytestmark = pytest.mark.both_dialects

A, B, X, Y = "gpu-0001", "gpu-0002", "XGPU1650423", "YGPU1650423"
STAGES, LEVEL = ("intake", "burn_in"), "standard"


@pytest.fixture(autouse=True)
def two_nodes(fleet_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
    for name, serial in ((A, X), (B, Y)):
        store.nodes.add(fleet.new_node(name, serials={"gpu3": serial}))


def repaired(outcome: Outcome, node: str = A) -> Incident:
    """An incident of gpu3 with one attempt to reset it."""
    key = RunKey("repair", f"of {node}")
    store.nodes.move(node, State.QUARANTINE, "Ada", "XID 48")
    known = store.repairs.open_incident(node, Fault("gpu_memory", "gpu3"), "XID 48", STAGES, LEVEL)
    store.repairs.keep_bundle(known.id, Bundle("/archive/bundle", "ab" * 32, 100))
    store.leases.acquire(node, key)
    store.repairs.settle(store.repairs.reserve(known.id, "reset_gpu", key).id, outcome, "so it ended")
    store.leases.release(key, "over")
    return known


def sits(serial: str, node: str, slot: str = "gpu3") -> None:
    with writing() as session:
        parts.move_part(session, node, slot, serial)


def passed(node: str, level: str, run: str) -> None:
    if store.nodes.get(node).state is State.QUARANTINE:
        store.nodes.move(node, State.REGISTERED, "Ada", "repaired by hand")
    fleet.qualify(node, f"{node}__{run}", level=level)


def proved(incident: Incident) -> list[bool | None]:
    return [each.proved for each in store.repairs.history(incident)]


@pytest.mark.parametrize("order", [((X, B), (Y, A)), ((Y, A), (X, B))])
def test_a_part_that_was_not_repaired_has_its_incident_in_the_node_that_it_is_put_into(
    order: tuple[tuple[str, str], ...],
) -> None:
    known = repaired(Outcome.PERMANENT)
    passed(B, LEVEL, "before")
    for serial, node in order:
        sits(serial, node)
    passed(A, LEVEL, "after")
    assert store.repairs.prove(A) == []
    passed(B, "short", "after")
    (found,) = store.repairs.find(B, still_open=True)
    assert (found.id, found.fault.device, found.fault.part) == (known.id, "gpu3", f"gpu {X}")
    decision = store.admission.decision(B)
    assert isinstance(decision, NeedsPerson)
    assert any(f"incident {known.id} " in each for each in decision.reasons)
    assert store.repairs.prove(B) == []
    passed(B, LEVEL, "again")
    assert store.repairs.prove(B) == [known.id]
    assert proved(known) == [None], "the reset failed: something else helped"


def test_a_part_that_was_not_repaired_is_a_persons_in_the_serving_node_that_it_is_put_into() -> None:
    fleet.qualify(B, level="short")
    store.nodes.move(B, State.PRODUCTION, "Ada", "needed now")
    assert [each.node for each in store.attention.collect()] == [A]
    known = repaired(Outcome.PERMANENT)
    sits(X, B)
    shown = next(each for each in store.attention.collect() if each.node == B)
    assert (shown.turn, shown.serving) == (Turn.PERSON, True)
    assert shown.command.startswith(f"muster revalidate {B} --level {LEVEL} ")
    store.repairs.close(known.id, "the vendor has tested it")
    assert [each.node for each in store.attention.collect()] == [A]


def test_a_part_that_was_replaced_proves_no_repair() -> None:
    known = repaired(Outcome.SUCCEEDED)
    sits("NEWGPU1650423", A)
    fleet.qualify(A, level=LEVEL)
    assert store.repairs.prove(A) == [known.id]
    assert proved(known) == [None]


def test_two_parts_with_the_same_fault_may_change_places() -> None:
    of_x, of_y = repaired(Outcome.PERMANENT), repaired(Outcome.PERMANENT, B)
    sits(X, B)
    sits(Y, A)
    assert [each.id for each in store.repairs.find(A, still_open=True)] == [of_y.id]
    assert [each.id for each in store.repairs.find(B, still_open=True)] == [of_x.id]
    again = store.repairs.open_incident(A, Fault("gpu_memory", "gpu3"), "XID 48", STAGES, LEVEL)
    assert again.id == of_y.id


def test_two_incidents_of_one_part_are_one_in_the_node_that_it_is_put_into() -> None:
    first = repaired(Outcome.PERMANENT)
    sits(X, A, "gpu1")
    second = store.repairs.open_incident(A, Fault("gpu_memory", "gpu1"), "XID 48", STAGES, LEVEL)
    sits(X, B)
    (found,) = store.repairs.find(B, still_open=True)
    assert found.id in (first.id, second.id)
    assert store.repairs.find(A, still_open=True) == []


def test_the_part_that_comes_back_proves_no_repair_of_the_one_that_was_tried_there() -> None:
    known = repaired(Outcome.SUCCEEDED)
    passed(B, LEVEL, "before")
    sits(X, B)
    sits(Y, B)
    passed(B, LEVEL, "after")
    assert store.repairs.prove(B) == [known.id]
    assert proved(known) == [None]
