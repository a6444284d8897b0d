"""Earlier failures follow the part by its serial to any node and slot; the present run does not count."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.model.states import State
from muster_criteria.model import COMMON_CAUSE, SHARED_CAUSE, Finding, Severity, Verdict
from tests.muster import fleet

NODE, OTHER = "gpu-0001", "gpu-0002"
PARTS = {"system": "CHASSIS", "gpu3": "SLOW", "gpu4": "GOOD"}
GPU = fleet.finding()
DISK = fleet.finding(device="disk:sda", metric="disk_read_rate")


def visit(run: str, *found: Finding, node: str = NODE, serials: dict[str, str] | None = None) -> None:
    """One run that ends at intake, after which a person takes the node back to where it began."""
    lease = fleet.begin(node, run)
    parsed, raw = fleet.result("intake", node=node, serials=PARTS if serials is None else serials, note=run)
    store.runs.begin_stage(lease.key, "intake")
    verdict = Verdict.FAIL if found else Verdict.PASS
    fleet.record(lease.key, parsed, fleet.judgement("intake", verdict, findings=found), raw)
    store.runs.finish(lease.key, verdict, "so it is")
    store.leases.release(lease.key, "over")
    if store.nodes.get(node).state is State.QUARANTINE:
        for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
            store.nodes.move(node, state, "Ada", "rebooted it")


def before(
    run: str = "next", node: str = NODE, serials: dict[str, str] | None = None, at: datetime.datetime | None = None
) -> dict[str, int]:
    parsed, _ = fleet.result("burn_in", node=node, serials=serials)
    return store.past_faults.previous(parsed, node, run, at)


@pytest.fixture(autouse=True)
def _nodes(fleet_db: object) -> None:
    store.nodes.add(fleet.new_node(NODE))
    store.nodes.add(fleet.new_node(OTHER))


def test_runs_are_counted_and_not_findings_nor_the_run_itself() -> None:
    visit("one", GPU, fleet.finding(metric="burn_rate"))
    visit("two", GPU, DISK)
    visit("three")
    assert before() == {"gpu3": 2, "disk:sda": 1}
    assert before("two") == {"gpu3": 1}


def test_what_was_not_known_then_does_not_count() -> None:
    visit("one", GPU)
    then = datetime.datetime.now(datetime.UTC)
    visit("two", GPU)
    assert before(at=then) == {"gpu3": 1}


@pytest.mark.both_dialects
def test_a_part_takes_its_past_along_to_another_node_and_slot() -> None:
    visit("one", GPU, DISK)
    assert before(node=OTHER, serials={"system": "OTHER", "gpu6": "SLOW"}) == {"gpu6": 1}
    visit("moved", node=OTHER, serials={"system": "OTHER", "gpu6": "SLOW"})
    store.contested.confirm(OTHER, "SLOW", "Ada", "moved there")
    assert before(node=OTHER) == {"gpu6": 1}
    visit("there", fleet.finding(device="gpu6"), node=OTHER, serials={"system": "OTHER", "gpu6": "SLOW"})
    assert before(node=OTHER) == {"gpu6": 2}


def test_a_new_part_in_the_slot_has_no_past() -> None:
    visit("one", GPU, DISK)
    assert before(serials={**PARTS, "gpu3": "NEW"}) == {"disk:sda": 1}
    visit("new part", serials={**PARTS, "gpu3": "NEW"})
    assert before() == {"disk:sda": 1}


def test_what_has_no_serial_is_followed_by_its_name_on_the_same_machine() -> None:
    visit("one", GPU, serials={})
    assert before() == {"gpu3": 1}
    assert before(node=OTHER) == {}
    store.adoption.replace(NODE, "Ada", "new machine", host_key=fleet.host_key("another"))
    assert before() == {}


@pytest.mark.parametrize(
    "finding",
    [
        fleet.finding(severity=Severity.WARNING),
        fleet.finding(confidence=SHARED_CAUSE),
        fleet.finding(rule=COMMON_CAUSE),
    ],
)
def test_what_failed_no_part_does_not_count(finding: Finding) -> None:
    visit("one", finding)
    assert before() == {}
