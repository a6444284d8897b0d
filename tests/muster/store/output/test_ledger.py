"""The digest's facts from real records, and the command that shows them."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.model.states import State
from muster.store.database import access
from muster_criteria.model import FaultClass, Verdict
from muster_reports.digest import numbers
from tests.muster import fleet

HOUR = datetime.timedelta(hours=1)


def in_service(name: str) -> None:
    """Enrol a node that passes every stage, and bring it into production."""
    store.nodes.add(fleet.new_node(name))
    fleet.qualify(name)
    store.nodes.move(name, State.PRODUCTION, "petra", "seen it")


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
    assert [run.run_id for run in found.runs if run.verdict == "FAIL"] == ["b__again"]
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


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_a_period_that_is_over_shows_what_it_showed_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mail's commands name its end: days later they list what its numbers counted."""
    in_service("a")
    fleet.fail("a", "a__fails")
    then = datetime.datetime.now(datetime.UTC)
    before = store.ledger.fleet(then - HOUR, then)
    monkeypatch.setattr(access, "now", lambda: datetime.datetime.now(datetime.UTC) + 2 * HOUR)
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move("a", state, "petra", "repaired")
    fleet.qualify("a", "a__again")
    store.nodes.move("a", State.PRODUCTION, "petra", "it is well")
    after = store.ledger.fleet(then - HOUR, then)
    assert after.nodes["a"].state == before.nodes["a"].state == "quarantine"
    assert before.escapes
    assert after.escapes == before.escapes
    assert [each.back for each in after.repairs] == [each.back for each in before.repairs] == [None]
    empty = store.ledger.fleet(then, then + HOUR)
    assert empty.sku_hours() == {"cpu-generic": {"quarantine": pytest.approx(1.0)}}


def _returned(name: str) -> None:
    """A machine that served fails, goes back to its vendor, and another one gets its name."""
    fleet.fail(name, f"{name}__fails", fleet.finding())
    for state in (State.TRIAGE, State.RMA):
        store.nodes.move(name, state, "petra", "it goes back")
    store.adoption.replace(name, "petra", "the new one is here", host_key=fleet.host_key(f"new {name}"))


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_what_another_machine_of_the_name_did_is_no_evidence_of_this_one() -> None:
    in_service("a")
    _returned("a")
    now = datetime.datetime.now(datetime.UTC)
    assert store.ledger.fleet(now - HOUR, now + HOUR).nodes["a"].last_pass is None
    store.nodes.add(fleet.new_node("b"))
    fleet.qualify("b")
    store.adoption.replace("b", "petra", "another one", host_key=fleet.host_key("new b"))
    fleet.fail("b", "b__again")
    missed = store.ledger.fleet(now - HOUR, now + HOUR).missed()
    assert [(passed.run_id, failed.run_id) for passed, failed in missed] == [("a__new", "a__fails")]


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_a_failure_after_a_pass_counts_in_its_period_however_long_ago_the_pass_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "b", "c"):
        in_service(name)
    began = datetime.datetime.now(datetime.UTC)
    moved = 0 * HOUR
    monkeypatch.setattr(access, "now", lambda: began + moved)
    moved = 2 * HOUR
    fleet.fail("b", "b__fails")
    moved = 5 * HOUR
    fleet.fail("a", "a__fails")
    periods = [store.ledger.fleet(began + each * HOUR, began + (each + 1) * HOUR) for each in range(-1, 8)]
    counted = [(passed.run_id, failed.run_id) for each in periods for passed, failed in each.missed()]
    assert counted == [("b__new", "b__fails"), ("a__new", "a__fails")]
    whole = store.ledger.fleet(began - HOUR, began + 8 * HOUR)
    assert [(passed.run_id, failed.run_id) for passed, failed in whole.missed()] == counted


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_a_node_is_as_stale_as_the_stage_that_passed_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    in_service("a")
    passed = datetime.datetime.now(datetime.UTC)
    monkeypatch.setattr(access, "now", lambda: passed + 2 * HOUR)
    fleet.qualify("a", "a__short", stages=("intake", "performance"))
    last = store.ledger.fleet(passed - HOUR, passed + 3 * HOUR).nodes["a"].last_pass
    assert last is not None
    assert last <= passed


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_a_part_is_suspected_for_what_its_machine_showed_in_its_last_service() -> None:
    def returned(*states: State) -> None:
        for state in (*states, State.TRIAGE, State.RMA):
            store.nodes.move("a", state, "petra", "it goes back")

    store.nodes.add(fleet.new_node("a"))
    fleet.fail("a")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move("a", state, "petra", "repaired")
    fleet.qualify("a", "a__again")
    store.nodes.move("a", State.PRODUCTION, "petra", "seen it")
    returned(State.QUARANTINE)
    store.adoption.replace("a", "petra", "the new one is here", host_key=fleet.host_key("new"))
    fleet.fail("a", "a__new_machine", fleet.finding(fault_class=FaultClass.NIC))
    returned()
    store.adoption.replace("a", "petra", "the next one is here", host_key=fleet.host_key("next"))
    returned(State.QUARANTINE)
    now = datetime.datetime.now(datetime.UTC)
    moves = store.ledger.fleet(now - HOUR, now + HOUR).moves
    assert [move.part for move in moves if move.after == "rma"] == ["unknown", FaultClass.NIC, "unknown"]


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_a_fault_that_ended_with_another_machine_or_none_still_counts() -> None:
    for name in ("a", "b", "c"):
        in_service(name)
    _returned("a")
    fleet.qualify("a", "a__again")
    store.nodes.move("a", State.PRODUCTION, "petra", "seen it")
    store.nodes.move("b", State.QUARANTINE, "petra", "it hangs")
    store.nodes.move("b", State.RETIRED, "petra", "not worth it")
    until = datetime.datetime.now(datetime.UTC) + HOUR
    found = store.ledger.fleet(until - 2 * HOUR, until)
    assert [(each.node, bool(each.back), bool(each.gone)) for each in found.repairs] == [
        ("a", True, False),
        ("b", False, True),
    ]
    (of_all, *_) = numbers.by_sku(found)
    assert (of_all.repairs.times, of_all.repairs.still) == (2, 0)
    assert [pool.failures for pool in found.pools] == [1], "a retired node takes no spare any more"
    assert [each.node for each in store.failures.since(until - 2 * HOUR)] == ["b"], "of present machines"
