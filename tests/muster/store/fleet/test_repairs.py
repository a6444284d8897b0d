"""Repairs in the records: one attempt at a time, reserved before the act, and no return without the tests."""

from __future__ import annotations

import contextlib
import datetime
import threading

import pytest

from muster import store
from muster.errors import IllegalMove, MusterError
from muster.model.repairs import Bundle, Fault, Incident, Outcome
from muster.model.runs import RunKey
from muster.model.states import State
from muster.store.database import access
from muster_criteria.model import Verdict
from muster_criteria.repair.ladder import Together
from tests.muster import fleet

NODE, KEY = "gpu-0001", RunKey("repair", "one")
FAULT, PROVE, LEVEL = Fault("gpu_memory", "gpu3"), ("intake", "burn_in"), "standard"
TOGETHER = Together(fleet=2, place=1, labels=("rack",))
BUNDLE = Bundle("/archive/bundle", "ab" * 32, 100)


def broken(**changes: object) -> Incident:
    """A node in quarantine that a repair holds, with its evidence."""
    store.nodes.add(fleet.new_node(NODE, **changes))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
    store.leases.acquire(NODE, KEY)
    return evident()


def evident() -> Incident:
    return store.repairs.keep_bundle(store.repairs.open_incident(NODE, FAULT, "XID 95", PROVE, LEVEL).id, BUNDLE)


@pytest.mark.both_dialects
def test_of_attempts_reserved_at_once_one_is_carried_out(fleet_db: str) -> None:
    incident, got, ready = broken().id, list[str](), threading.Barrier(4)

    def reserve() -> None:
        ready.wait(30)
        try:
            got.append(str(store.repairs.reserve(incident, "reboot", KEY).id))
        except MusterError as error:
            got.append(type(error).__name__)

    threads = [threading.Thread(target=reserve) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert got.count("NodeLeased") == 3, got
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert (str(attempt.id) in got, attempt.outcome) == (True, None)


@pytest.mark.both_dialects
def test_one_fault_has_one_open_incident_whoever_opens_it(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node(NODE))
    opened, ready = list[int](), threading.Barrier(4)

    def start() -> None:
        ready.wait(30)
        opened.append(store.repairs.open_incident(NODE, FAULT, "XID 95", PROVE, LEVEL).id)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert len(opened) == 4
    assert len(set(opened)) == 1
    store.repairs.close(opened[0], "by hand", "Ada")
    assert store.repairs.open_incident(NODE, FAULT, "again", PROVE, LEVEL).id != opened[0]


@pytest.mark.both_dialects
def test_an_attempt_ends_once_and_the_node_leaves_repair_with_it(fleet_db: str) -> None:
    incident = broken()
    attempt = store.repairs.reserve(incident.id, "reset_gpu", KEY)
    assert store.nodes.get(NODE).state is State.REPAIR
    assert store.repairs.settle(attempt.id, Outcome.PERMANENT, "it hangs").outcome is Outcome.PERMANENT
    assert store.nodes.get(NODE).state is State.QUARANTINE
    assert store.repairs.settle(attempt.id, Outcome.SUCCEEDED, "late").outcome is Outcome.PERMANENT
    second = store.repairs.reserve(incident.id, "reboot", KEY)
    store.repairs.settle(second.id, Outcome.SUCCEEDED, "another boot")
    assert store.nodes.get(NODE).state is State.REGISTERED


def test_the_days_since_an_attempt_are_those_on_which_tests_were_recorded(
    fleet_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident, now = broken(), access.now
    attempt = store.repairs.reserve(incident.id, "reset_gpu", KEY)
    store.repairs.settle(attempt.id, Outcome.SUCCEEDED, "done")
    store.leases.release(KEY, "over")

    def days() -> list[int]:
        return [each.days for each in store.repairs.history(incident)]

    assert days() == [0]
    for number, ahead in enumerate((1, 1, 2, 40, 400)):
        monkeypatch.setattr(access, "now", lambda ahead=ahead: now() + datetime.timedelta(days=ahead))
        store.nodes.add(fleet.new_node(f"gpu-10{number}"))
        fleet.qualify(f"gpu-10{number}")
    assert days() == [4], "a clock that is set ahead by a month and by a year adds a day each"


@pytest.mark.both_dialects
def test_of_many_nodes_that_begin_at_once_the_policy_lets_some(fleet_db: str) -> None:
    names, got, ready = [f"gpu-20{each}" for each in range(6)], list[str](), threading.Barrier(6)
    incidents = {}
    for number, name in enumerate(names):
        store.nodes.add(fleet.new_node(name, rack=f"r{number}"))
        store.nodes.move(name, State.QUARANTINE, "Ada", "XID 95")
        store.leases.acquire(name, RunKey("repair", name))
        known = store.repairs.open_incident(name, FAULT, "XID 95", PROVE, LEVEL)
        incidents[name] = store.repairs.keep_bundle(known.id, BUNDLE).id

    def reserve(name: str) -> None:
        ready.wait(30)
        with contextlib.suppress(IllegalMove):
            store.repairs.reserve(incidents[name], "reboot", RunKey("repair", name), TOGETHER)
            got.append(name)

    threads = [threading.Thread(target=reserve, args=(name,)) for name in names]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(got) == TOGETHER.fleet
    assert set(store.repairs.under_way(next(name for name in names if name not in got))) == set(got)


def test_a_node_is_under_repair_until_tests_prove_it_or_a_person_has_to_look(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node("other"))
    attempt = store.repairs.reserve(broken().id, "reset_gpu", KEY, TOGETHER)
    assert set(store.repairs.under_way("other")) == {NODE}
    store.repairs.settle(attempt.id, Outcome.SUCCEEDED, "done")
    assert set(store.repairs.under_way("other")) == {NODE}, "it was not tested yet"
    store.leases.release(KEY, "over")
    fleet.qualify(NODE, level=LEVEL)
    store.repairs.prove(NODE)
    assert store.repairs.under_way("other") == {}


def test_a_node_whose_test_never_begins_or_gave_no_verdict_keeps_no_other_from_its_repair(
    fleet_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node("other"))
    attempt = store.repairs.reserve(broken().id, "reset_gpu", KEY, TOGETHER)
    store.repairs.settle(attempt.id, Outcome.SUCCEEDED, "done")
    store.leases.release(KEY, "over")
    lease = fleet.begin(NODE, "proof", level=LEVEL)
    later = access.now() + store.repairs.PROOF_BEGINS
    with monkeypatch.context() as clock:
        clock.setattr(access, "now", lambda: later)
        assert set(store.repairs.under_way("other")) == {NODE}, "its test holds it"
    store.runs.finish(lease.key, Verdict.SKIPPED, "a fault of the controller")
    store.leases.release(lease.key, "over")
    assert (store.nodes.get(NODE).state, store.nodes.get(NODE).inconclusive) == (State.REGISTERED, 0)
    assert set(store.repairs.under_way("other")) == {NODE}, "another test may begin"
    monkeypatch.setattr(access, "now", lambda: later)
    assert store.repairs.under_way("other") == {}


def test_a_repaired_node_that_a_technician_has_keeps_no_other_from_its_repair(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node("other"))
    attempt = store.repairs.reserve(broken().id, "reset_gpu", KEY, TOGETHER)
    store.repairs.settle(attempt.id, Outcome.SUCCEEDED, "done")
    store.leases.release(KEY, "over")
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "its NIC is swapped")
    store.nodes.move(NODE, State.REPAIR, "Ada", "its NIC is swapped")
    assert store.repairs.under_way("other") == {}


def test_the_fault_of_a_new_part_is_another_incident(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node(NODE, serials={"gpu3": "OLD1650423"}))
    old = evident()
    assert old.fault.part == "gpu OLD1650423"
    assert evident().id == old.id
    fleet.qualify(NODE, stages=("intake",), serials={"gpu3": "NEW1650423"})
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
    assert not store.repairs.out_for(old)
    found = store.repairs.open_incident(NODE, FAULT, "XID 95 on the new gpu3", PROVE, LEVEL)
    assert found.id != old.id
    assert (found.fault.part, found.why, found.bundle) == ("gpu NEW1650423", "XID 95 on the new gpu3", None)
    assert store.repairs.out_for(found)
    assert store.repairs.get_incident(old.id).closed_at
    assert any("its part was replaced by gpu NEW1650423" in each.reason for each in store.nodes.events(NODE))


@pytest.mark.both_dialects
def test_gpus_that_move_up_behind_a_lost_one_replace_nothing(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node(NODE, serials={"gpu3": "1650423000003", "gpu4": "1650423000004"}))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 79")
    store.leases.acquire(NODE, KEY)
    lost = evident()
    store.repairs.settle(store.repairs.reserve(lost.id, "reboot", KEY).id, Outcome.SUCCEEDED, "another boot")
    store.leases.release(KEY, "over")
    lease = fleet.begin(NODE, "proof", level=LEVEL)
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.FINDING,), serials={"gpu3": "1650423000004"})
    store.leases.release(lease.key, "over")
    store.repairs.prove(NODE)
    assert [each.proved for each in store.repairs.history(lost)] == [None], "gpu3 is another one now"
    assert store.repairs.foreseen(NODE, FAULT)[0].part == "gpu 1650423000003"
    assert evident().id == lost.id


@pytest.mark.parametrize(
    ("before", "after"), [({}, {"gpu3": "NEW1650423"}), ({"system": "S1-1650"}, {"gpu3": "NEW16504"})]
)
def test_a_serial_that_becomes_known_is_no_replacement(
    fleet_db: str, before: dict[str, str], after: dict[str, str]
) -> None:
    store.nodes.add(fleet.new_node(NODE, serials=before))
    known = evident()
    fleet.qualify(NODE, stages=("intake",), serials=before | after)
    assert evident().id == known.id


def test_what_may_not_be_repaired_is_not_reserved(fleet_db: str) -> None:
    incident = broken()
    by_hand = store.repairs.open_incident(NODE, Fault("by_hand"), "a ticket")
    with pytest.raises(IllegalMove):
        store.repairs.reserve(by_hand.id, "reboot", KEY)
    for state in (State.REPAIR, State.RMA):
        store.leases.release(KEY, "over")
        store.nodes.move(NODE, state, "Ada", "a technician has it")
        store.leases.acquire(NODE, KEY)
        with pytest.raises(IllegalMove):
            store.repairs.reserve(incident.id, "reboot", KEY)
        store.leases.release(KEY, "over")
        store.nodes.move(NODE, State.REGISTERED, "Ada", "back")
        store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
        store.leases.acquire(NODE, KEY)
    store.repairs.close(incident.id, "by hand", "Ada")
    with pytest.raises(IllegalMove):
        store.repairs.reserve(incident.id, "reboot", KEY)


def test_an_incident_by_hand_is_proved_by_nothing_and_stops_no_other(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node(NODE))
    store.repairs.open_incident(NODE, Fault("by_hand"), "a ticket")
    incident = store.repairs.open_incident(NODE, FAULT, "XID 95", ("intake",), "short")
    fleet.qualify(NODE, level="standard")
    assert store.repairs.prove(NODE) == [incident.id]


def test_a_part_that_is_not_in_the_node_is_not_known(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node(NODE, serials={"gpu3": "1650423000003"}))
    known = store.repairs.open_incident(NODE, Fault("gpu_memory", "gpu3"), "XID 95")
    other = store.repairs.open_incident(NODE, Fault("gpu_lost", "gpu3", "gpu 1650423000009"), "XID 79")
    assert (known.fault.part, other.fault.part) == ("gpu 1650423000003", "")


def test_what_was_wrong_with_another_machine_is_not_open_any_more(fleet_db: str) -> None:
    broken()
    store.leases.release(KEY, "over")
    assert len(store.repairs.find(still_open=True)) == 1
    store.adoption.replace(NODE, "Ada", "RMA 17", host_key=fleet.host_key("another"))
    assert store.repairs.find(still_open=True) == store.repairs.find(NODE) == []
    assert len(store.repairs.find()) == 1


def test_a_failed_test_leaves_its_incident_open_and_the_attempt_unproved(fleet_db: str) -> None:
    incident = broken()
    attempt = store.repairs.reserve(incident.id, "reset_gpu", KEY)
    store.repairs.settle(attempt.id, Outcome.SUCCEEDED, "it ended well")
    store.leases.release(KEY, "over")
    fleet.fail(NODE, "a test")
    assert store.repairs.prove(NODE) == []
    (seen,) = store.repairs.history(incident)
    assert (seen.proved, store.runs.stages(RunKey("node_qualification", "a test"))[0].verdict) == (False, Verdict.FAIL)
