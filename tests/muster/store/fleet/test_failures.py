"""The fleet's failures in service: for what, since when, and whether the part was replaced."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from sqlalchemy import event

from muster import store
from muster.admission.entry import move
from muster.model.failures import Failure
from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import writing
from muster.store.machines import parts
from muster_criteria.model import FaultClass, Verdict
from tests.muster import copied, fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"


def failures() -> list[Failure]:
    return store.failures.since(datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1))


@pytest.fixture(autouse=True)
def serving(fleet_db: str) -> None:
    copied.in_service()


def test_a_node_that_never_failed_has_none() -> None:
    assert failures() == []


@pytest.mark.parametrize(
    ("stage", "fault_class", "group"),
    [
        ("intake", FaultClass.HBM, "memory"),
        ("integrity", FaultClass.GPU, "corruption"),
        ("intake", FaultClass.NODE, "unknown"),
    ],
)
def test_a_failure_counts_by_what_was_found(stage: str, fault_class: FaultClass, group: str) -> None:
    fleet.fail(NODE, "found", fleet.finding(fault_class=fault_class), stage=stage)
    if store.nodes.get(NODE).state is State.PRODUCTION:
        move(NODE, State.QUARANTINE, "Ada", "it failed")
    (failure,) = failures()
    assert (failure.node, failure.group, failure.back) == (NODE, group, None)


@pytest.mark.both_dialects
def test_a_failure_lasts_until_the_node_serves_again() -> None:
    move(NODE, State.QUARANTINE, "Ada", "it hangs")
    assert [each.back for each in failures()] == [None]
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        move(NODE, state, "Ada", "repaired")
    fleet.qualify(run_id="again")
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    (failure,) = failures()
    assert failure.back is not None
    assert failure.back > failure.at
    assert (failure.group, failure.replaced) == ("unknown", False)


def repaired(run_id: str) -> None:
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        move(NODE, state, "Ada", "repaired")
    fleet.qualify(run_id=run_id)
    move(NODE, State.PRODUCTION, "Ada", "needed now")


def sits(serials: dict[str, str]) -> None:
    with writing() as session:
        parts.clear_places(session, NODE)
        for slot, serial in serials.items():
            parts.move_part(session, NODE, slot, serial)


@pytest.mark.both_dialects
@pytest.mark.parametrize(
    ("back", "replaced"), [({"gpu0": "A", "gpu1": "B"}, False), ({"gpu0": "X", "gpu1": "B"}, True)]
)
def test_a_gpu_that_left_the_bus_for_a_while_was_not_replaced(back: dict[str, str], replaced: bool) -> None:
    """Behind a GPU that does not answer the others move up: both leave their slots, and both are back."""
    sits({"gpu0": "A", "gpu1": "B"})
    fleet.fail(NODE, "lost", fleet.finding(fault_class=FaultClass.GPU, device="gpu0"))
    sits({"gpu0": "B"})
    sits(back)
    repaired("reset")
    assert [each.replaced for each in failures()] == [replaced]


def test_a_failure_is_not_charged_with_what_an_earlier_one_of_the_same_day_had() -> None:
    fleet.fail(NODE, "found", fleet.finding(fault_class=FaultClass.HBM), stage="integrity")
    repaired("first")
    move(NODE, State.QUARANTINE, "Ada", "it hangs")
    assert [each.group for each in failures()] == ["memory", "unknown"]


@pytest.mark.both_dialects
@pytest.mark.parametrize("ahead", [-3, 3])
def test_a_clock_that_was_wrong_when_a_fault_was_found_loses_it_not(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    wrong = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=ahead)
    with monkeypatch.context() as patch:
        patch.setattr(access, "now", lambda: wrong)
        lease = fleet.begin(NODE, "found")
        fleet.do_stage(lease, "intake", Verdict.FAIL, findings=[fleet.finding(fault_class=FaultClass.HBM)])
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
    assert [each.group for each in failures()] == ["memory"]


@pytest.mark.both_dialects
def test_further_failures_cost_no_further_queries() -> None:
    def asked() -> list[str]:
        queries: list[str] = []
        made = store.engine.engine()

        def note(*called: Any) -> None:
            queries.append(called[2])

        event.listen(made, "before_cursor_execute", note)
        try:
            failures()
        finally:
            event.remove(made, "before_cursor_execute", note)
        return queries

    move(NODE, State.QUARANTINE, "Ada", "it hangs")
    repaired("first")
    once = asked()
    move(NODE, State.QUARANTINE, "Ada", "it hangs again")
    repaired("second")
    assert len(failures()) == 2
    assert len(asked()) == len(once)
