"""``muster repair`` rehearsed, and what a person sees of an incident and does about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import store
from muster.model.repairs import NOTHING_READ, Bundle, Fault, Incident, Outcome
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import evidence
from tests.muster import fleet

Muster = Callable[..., "tuple[int, str, str]"]
NODE, WHY = "gpu-0001", ("--reason", "because", "--as", "Ada")


@pytest.fixture
def incident(fleet_db: str) -> Incident:
    """A node in quarantine, of which a first repair was tried and a person is asked now."""
    store.nodes.add(fleet.new_node(NODE))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
    key = RunKey("repair", "first")
    store.leases.acquire(NODE, key)
    found = store.repairs.open_incident(NODE, Fault("gpu_memory", "gpu3"), "XID 95", ("intake", "burn_in"), "standard")
    store.repairs.keep_bundle(found.id, Bundle("/archive/bundle", "ab" * 32, 100))
    attempt = store.repairs.reserve(found.id, "reset_gpu", key)
    store.repairs.settle(attempt.id, Outcome.PERMANENT, "it hangs")
    store.repairs.ask(found.id, "reboot is not switched on")
    store.leases.release(key, "over")
    return store.repairs.get_incident(found.id)


def test_what_waits_for_a_person_is_seen_wherever_one_looks(muster: Muster, incident: Incident) -> None:
    (seen,) = json.loads(muster("status", "--json")[1])["attention"]
    assert (seen["node"], seen["turn"], seen["command"]) == (NODE, "person", f"muster evidence show {incident.id}")
    assert incident.asks in seen["why"]
    for command in (
        ["status"],
        ["evidence", "list"],
        ["evidence", "show", str(incident.id)],
        ["node", "history", NODE],
    ):
        assert incident.asks in muster(*command)[1], command
    assert "it hangs" in muster("evidence", "show", str(incident.id))[1]
    (attempt,) = json.loads(muster("evidence", "show", str(incident.id), "--json")[1])["attempts"]
    assert attempt["detail"] == "it hangs"


def test_the_archive_is_written_where_the_caller_can_read_it(
    muster: Muster, incident: Incident, tmp_path: Path
) -> None:
    kept = tmp_path / "bundle.tar.gz"
    kept.write_text("its bytes")
    store.repairs.keep_bundle(incident.id, Bundle(str(kept), "ab" * 32, 9))
    assert muster("evidence", "show", str(incident.id), "--archive") == (0, "its bytes", "")
    assert muster("evidence", "show", str(incident.id), "--archive", "--json")[0] == 1


def test_an_open_incident_is_listed_first_however_many_came_after_it(muster: Muster, incident: Incident) -> None:
    store.nodes.add(fleet.new_node("other"))
    for number in range(100):
        later = store.repairs.open_incident("other", Fault("by_hand", f"gpu{number}"), "x")
        store.repairs.close(later.id, "done")
    listed = json.loads(muster("evidence", "list", "--json")[1])
    assert [each["id"] for each in (listed[0], listed[1], listed[-1])] == [incident.id, later.id, incident.id + 1]


def test_a_rehearsal_of_evidence_of_a_simulated_node_reads_nothing_of_it(muster: Muster, fleet_db: str) -> None:
    take = ("evidence", "take", NODE, "--reason", "x", "--dry-run", "--json")
    store.nodes.add(fleet.new_node(NODE))
    store.nodes.add(fleet.new_node("sim", simulated=True))
    real = json.loads(muster(*take)[1])["messages"]
    simulated = json.loads(muster(*(word if word != NODE else "sim" for word in take))[1])["messages"]
    assert len(real) > 2
    assert len(simulated) == 2


def test_evidence_without_anything_of_the_node_is_no_success(
    muster: Muster, incident: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(opened: Incident) -> Incident:
        return store.repairs.keep_bundle(opened.id, Bundle("/archive/bundle", "ab" * 32, 100, (NOTHING_READ,)))

    monkeypatch.setattr(evidence, "take", take)
    status, out, err = muster("evidence", "take", NODE, "--reason", "XID 95")
    assert (status, "/archive/bundle" in out, NODE in err) == (1, True, True)
    assert [each.fault.fault_class for each in store.repairs.find(NODE, still_open=True)] == ["gpu_memory"]


def test_an_incident_is_closed_by_a_named_person_once(muster: Muster, incident: Incident) -> None:
    number = str(incident.id)
    assert muster("evidence", "close", number, "--reason", "x", "--as", "root")[0] == 1
    assert store.repairs.find(NODE, still_open=True)
    assert muster("evidence", "close", number, *WHY)[0] == 0
    assert store.repairs.find(NODE, still_open=True) == []
    assert store.nodes.events(NODE)[-1].actor == "Ada"
    status, _, err = muster("evidence", "close", number, *WHY)
    assert (status, err.count("\n")) == (1, 1)
    assert muster("evidence", "close", "999", *WHY)[0] == 1


def test_a_rehearsal_names_the_next_step_and_changes_nothing(muster: Muster, incident: Incident) -> None:
    before = store.nodes.events(NODE)
    status, out, _ = muster("repair", NODE, "--fault", "gpu_memory", "--device", "gpu3", *WHY[:2], "--dry-run")
    assert status == 0
    assert "reboot is not switched on" in out
    assert store.nodes.events(NODE) == before
    again = muster("repair", NODE, "--fault", "gpu_memory", "--device", "gpu3", *WHY[:2], "--dry-run", "--json")[1]
    shown = json.loads(again)["effects"][NODE]
    assert [line.removeprefix(f"{NODE}: ") for line in out.splitlines()[1:-1]] == shown
    status, out, _ = muster("repair", NODE, "--fault", "no_such", *WHY[:2], "--dry-run")
    assert (status, "no_such" in out) == (1, True)


def rehearsed(muster: Muster, fault: str) -> str:
    return muster("repair", NODE, "--fault", fault, "--device", "gpu3", *WHY[:2], "--dry-run")[1]


def test_a_rehearsal_knows_the_part_of_a_device_and_the_repairs_of_other_faults(muster: Muster, fleet_db: str) -> None:
    store.nodes.add(fleet.new_node(NODE, serials={"gpu3": "1650423000003"}))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
    assert "reset_gpu is not switched on" in rehearsed(muster, "gpu_memory"), "its serial number is known"
    assert "reboot is not switched on" in rehearsed(muster, "gpu_lost")
    of = ("repair", NODE, "--fault", "gpu_lost", *WHY[:2], "--dry-run", "--json", "--device")
    assert [len(json.loads(muster(*of, device)[1])["risks"][NODE]) for device in ("gpu3", "gpu66")] == [0, 1]
    for number, fault in enumerate(("host_memory", "host_other")):
        key = RunKey("repair", str(number))
        store.leases.acquire(NODE, key)
        found = store.repairs.open_incident(NODE, Fault(fault), "seen", ("intake",), "standard")
        store.repairs.keep_bundle(found.id, Bundle("/archive/bundle", "ab" * 32, 100))
        attempt = store.repairs.reserve(found.id, "reboot", key)
        store.repairs.settle(attempt.id, Outcome.PERMANENT, "it hangs")
        store.leases.release(key, "over")
    assert "2 repairs were carried out" in rehearsed(muster, "gpu_lost"), "the node's budget is used up"


def test_a_rehearsal_of_a_paused_node_is_refused_as_the_repair_is(muster: Muster, incident: Incident) -> None:
    store.pauses.pause(NODE, store.waivers.end_of("2099-12-31"), "Ada", "its chassis is open")
    assert "its chassis is open" in rehearsed(muster, "gpu_memory")
