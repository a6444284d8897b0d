"""The fleet's failures in service: for what, since when, and whether the part was replaced."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from sqlalchemy import delete, event

from muster import store
from muster.admission.entry import move
from muster.judging import policies
from muster.model.failures import Failure
from muster.model.health import Report
from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import writing
from muster.store.database.health import HealthRow
from muster.store.machines import parts
from muster_criteria import policy_file
from muster_criteria.device_events.policy import EventPolicy, EventSeverity
from muster_criteria.health.readings import Reading
from muster_criteria.model import FaultClass, Verdict
from muster_criteria.sku_files.skus import SHIPPED
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


def leaves(check: str, slot: str) -> None:
    """The sweep sees it, and the node leaves service."""
    seen = Report(NODE, "sweep", (Reading(check, slot, severity="REBOOT"),), "boot")
    (observation,) = store.health.record([seen], policies.health())
    store.health.withdraw(observation, "by policy")


@pytest.mark.both_dialects
@pytest.mark.parametrize(
    ("check", "slot", "group", "replaced"),
    [
        ("xid/95", "gpu0", "memory", True),
        ("xid/79", "pci:0000:1b:00.0", "links", True),
        ("xid/95", "gpu1", "memory", False),
        ("kernel/oops", "node", "unknown", True),
        ("edac_uncorrected", "node", "memory", False),
        ("port_down", "nic:mlx5_0", "links", False),
        ("psu_failed", "psu1", "power", False),
    ],
)
def test_a_failure_that_the_sweep_found_has_its_group_and_its_part(
    check: str, slot: str, group: str, replaced: bool
) -> None:
    sits({"gpu0": "A", "gpu1": "B"})
    leaves(check, slot)
    sits({"gpu0": "X", "gpu1": "B"})
    repaired("replaced")
    assert [(each.group, each.replaced) for each in failures()] == [(group, replaced)]


@pytest.mark.parametrize(("check", "slot"), [("edac_uncorrected", "node"), ("port_down", "nic:mlx5_0")])
def test_a_part_without_a_serial_goes_with_its_board(check: str, slot: str) -> None:
    sits({"gpu0": "A", "board": "M"})
    leaves(check, slot)
    sits({"gpu0": "A", "board": "N"})
    repaired("replaced")
    assert [each.replaced for each in failures()] == [True]


def test_what_the_sweep_found_counts_when_its_observation_is_no_longer_kept() -> None:
    sits({"gpu0": "A"})
    leaves("xid/95", "gpu0")
    with writing() as session:
        session.execute(delete(HealthRow))
    sits({"gpu0": "X"})
    repaired("replaced")
    assert [(each.group, each.replaced) for each in failures()] == [("memory", True)]


def test_a_node_that_was_reset_alone_had_nothing_replaced() -> None:
    sits({"gpu0": "A"})
    leaves("xid/95", "gpu0")
    repaired("reset")
    assert [each.replaced for each in failures()] == [False]


@pytest.mark.parametrize("name", ["kernel", "nvidia-xid"])
def test_what_the_sweep_sees_has_the_group_that_a_test_gives_it(name: str) -> None:
    policy = policy_file.parse(EventPolicy, (SHIPPED / "policies" / f"{name}.yaml").read_bytes(), name)
    leaving = {EventSeverity.ISOLATE, EventSeverity.REBOOT, EventSeverity.RESET}
    for entry in policy.entries:
        if leaving.intersection((entry.severity, *(case.severity for case in entry.cases))):
            for what in entry.codes or (entry.name,):
                known = store.failures.group_seen(f"{entry.kind}/{what}")
                assert (what, known) == (what, store.failures.GROUP_OF.get(entry.fault, "unknown"))


def test_what_a_former_machine_served_is_asked_for() -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    assert store.failures.served(later).keys() == {NODE}
    store.adoption.replace(NODE, "Ada", "another one", host_key=fleet.host_key("other"))
    assert store.failures.served(later) == {}
    assert store.failures.served(later, former=True).keys() == {NODE}


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
