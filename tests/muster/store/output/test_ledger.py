"""The digest's facts from real records, and the command that shows them."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.model.states import State
from muster_criteria.model import Verdict
from tests.muster import fleet

HOUR = datetime.timedelta(hours=1)


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_facts_are_those_of_the_period_the_kind_and_the_label() -> None:
    for name, labels, simulated in (("a", {"team": "x"}, False), ("b", {"team": "y"}, False), ("s", {}, True)):
        store.nodes.add(fleet.new_node(name, labels=labels, simulated=simulated))
    fleet.qualify("a")
    store.nodes.move("a", State.PRODUCTION, "petra", "seen it")
    fleet.fail("b")
    now = datetime.datetime.now(datetime.UTC)
    found = store.ledger.fleet(now - HOUR, now + HOUR)
    assert set(found.nodes) == {"a", "b"}
    assert set(found.delivered) == {"a"}
    assert found.nodes["a"].last_pass is not None
    assert [(fault.node, fault.device) for fault in found.faults] == [("b", "gpu3")]
    assert {run.node: run.verdict for run in found.runs} == {"a": "PASS", "b": "FAIL"}
    assert set(store.ledger.fleet(now - HOUR, now + HOUR, labels={"team": "y"}).nodes) == {"b"}
    assert set(store.ledger.fleet(now - HOUR, now + HOUR, simulated=True).nodes) == {"s"}
    earlier = store.ledger.fleet(now - 2 * HOUR, now - HOUR)
    assert not earlier.nodes
    assert not earlier.runs


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_an_adopted_node_is_no_delivery_and_vendor_firmware_and_failed_stage_are_known() -> None:
    store.nodes.add(fleet.new_node("old"))
    store.adoption.adopt(["old"], "petra", "it serves already")
    store.nodes.add(fleet.new_node("b", labels={"vendor": "acme"}))
    fleet.qualify("b", environment={"vbios": "1.2", "vendor": "Another"})
    store.nodes.add(fleet.new_node("c"))
    fleet.qualify("c", environment={"vendor": "Maker"})
    fleet.fail("b", "b__again")
    now = datetime.datetime.now(datetime.UTC)
    found = store.ledger.fleet(now - HOUR, now + HOUR, labels={})
    assert not found.delivered
    assert {name: node.vendor for name, node in found.nodes.items()} == {"b": "acme", "c": "Maker", "old": "unknown"}
    assert found.nodes["old"].versions == {}
    assert [(run.verdict, run.level, run.stages) for run in found.runs if run.stages] == [
        ("FAIL", "short", ("intake",))
    ]
    assert store.ledger.fleet(now - HOUR, now + HOUR, labels={"vendor": "acme"}).scope == "--label=vendor=acme"


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_a_failure_and_a_return_count_for_the_machine_and_the_driver_of_that_time() -> None:
    store.nodes.add(fleet.new_node("a"))
    lease = fleet.begin("a")
    fleet.do_stage(lease, "intake", Verdict.FAIL, {"driver": "590", "vendor": "First"}, findings=(fleet.finding(),))
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
    store.leases.release(lease.key, "over")
    for state in (State.TRIAGE, State.RMA):
        store.nodes.move("a", state, "petra", "it goes back")
    store.adoption.replace("a", "petra", "the new one is here", host_key=fleet.host_key("new"))
    fleet.qualify("a", "a__again", environment={"driver": "580", "vendor": "Second"})
    now = datetime.datetime.now(datetime.UTC)
    found = store.ledger.fleet(now - HOUR, now + HOUR)
    assert (found.nodes["a"].vendor, found.nodes["a"].versions) == ("Second", {"driver": "580"})
    assert [(fault.vendor, fault.versions) for fault in found.faults] == [("First", {"driver": "590"})]
    assert [move.vendor for move in found.moves if move.after == "rma"] == ["First"]
