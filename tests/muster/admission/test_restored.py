"""Records that were restored open no node of which they do not know what happened since."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import store
from muster.admission import changes, service
from muster.admission.entry import move
from muster.errors import NoPerson, Refusal
from muster.integration import closing
from muster.model.attention import Cause, Turn
from muster.model.states import State
from muster.rules.lifecycle import gate
from muster.rules.lifecycle.gate import Admit, NeedsPerson
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.admission.conftest import webhook_settings
from tests.muster.admission.listed import NODE, THERE, in_production, line, placed, revalidate
from tests.support.refusals import illegal
from tests.support.servers.kubernetes import Cluster
from tests.support.servers.receiver import Receiver

Restore = Callable[[], None]


@pytest.fixture
def restored(fleet_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Restore]:
    """Makes a back-up; what it returns restores it as new records."""

    def save() -> Restore:
        store.backup.save(tmp_path / "saved")

        def restore() -> None:
            store.engine.dispose()
            monkeypatch.setenv("MUSTER_DATABASE_URL", f"sqlite:///{tmp_path / 'other.db'}")
            store.backup.restore(tmp_path / "saved")

        return restore

    return save


def stays_closed_until_a_person_decides(nodes: Path) -> None:
    for _ in range(2):
        service.reconcile()
        assert "muster: " in line(nodes)
    (found,) = store.attention.collect()
    assert (found.cause, found.turn, found.serving) == (Cause.DIFFERS, Turn.PERSON, False)
    assert f"muster node open {NODE}" in found.command
    with pytest.raises(NoPerson):
        changes.let_open(NODE, "Ada", " ", dry_run=False)
    changes.let_open(NODE, "Ada", "it is healthy", dry_run=False)
    assert line(nodes) == THERE
    assert store.attention.collect() == []
    with illegal(Refusal.NOTHING_HELD):
        changes.let_open(NODE, "Ada", "once more", dry_run=False)


def test_a_node_that_failed_the_test_that_the_back_up_shows_under_way(
    nodes: Path, restored: Callable[[], Restore]
) -> None:
    in_production()
    lease = revalidate()
    restore = restored()
    fleet.do_stage(lease, "intake", Verdict.FAIL)
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is lost")
    store.leases.release(lease.key, "over")
    service.carry_out(NODE)
    assert store.nodes.get(NODE).state is State.QUARANTINE
    restore()
    closing.release(lease.key, "its run is over in Airflow")
    assert store.nodes.get(NODE).state is State.PRODUCTION
    stays_closed_until_a_person_decides(nodes)


def test_a_node_whose_admission_waited_then_and_which_was_withdrawn_since(
    nodes: Path, restored: Callable[[], Restore]
) -> None:
    in_production()
    nodes.rename(nodes.with_suffix(".away"))
    move(NODE, State.REGISTERED, "Ada", "looked at")
    fleet.qualify(run_id="again")
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    restore = restored()
    nodes.with_suffix(".away").rename(nodes)
    service.reconcile()
    move(NODE, State.QUARANTINE, "Ada", "smells of smoke")
    restore()
    stays_closed_until_a_person_decides(nodes)


def test_a_node_that_was_withdrawn_since(nodes: Path, restored: Callable[[], Restore]) -> None:
    in_production()
    restore = restored()
    move(NODE, State.QUARANTINE, "Ada", "smells of smoke")
    restore()
    assert [each.serving for each in store.attention.collect()] == [False]
    stays_closed_until_a_person_decides(nodes)


def test_records_that_came_back_as_a_file_are_held_by_a_command(
    nodes: Path, fleet_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    store.engine.dispose()
    shutil.copy(fleet_db.removeprefix("sqlite:///"), tmp_path / "other.db")
    move(NODE, State.QUARANTINE, "Ada", "smells of smoke")
    store.engine.dispose()
    monkeypatch.setenv("MUSTER_DATABASE_URL", f"sqlite:///{tmp_path / 'other.db'}")
    assert store.backup.restored() == 1
    assert store.audit.batch("siem", 99)[-1].evidence["held"] == 1
    stays_closed_until_a_person_decides(nodes)


def test_one_that_its_scheduler_shows_open_goes_on_by_itself(nodes: Path, restored: Callable[[], Restore]) -> None:
    in_production()
    placed("gpu-0002", "r1n2")
    nodes.write_text(f"{THERE}\nr1n2\n")
    service.reconcile()
    restored()()
    assert not service.idle([NODE])[NODE].idle
    service.reconcile()
    assert service.idle([NODE])[NODE].idle
    assert all(each.node != NODE for each in store.attention.collect())
    place = store.schedulers.place("gpu-0002")
    assert place
    assert not place.held


def test_a_node_that_passes_a_whole_test_after_it_needs_no_decision(
    nodes: Path, restored: Callable[[], Restore]
) -> None:
    in_production()
    restore = restored()
    move(NODE, State.QUARANTINE, "Ada", "smells of smoke")
    restore()
    service.reconcile()
    assert "muster: " in line(nodes)
    fleet.qualify(run_id="later")
    service.reconcile()
    assert line(nodes) == THERE
    place = store.schedulers.place(NODE)
    assert place
    assert not place.held


def test_a_node_that_had_passed_before_it_enters_by_a_person_alone(
    nodes: Path, restored: Callable[[], Restore], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed()
    fleet.qualify()
    service.reconcile()
    monkeypatch.setattr(gate, "decide", lambda *_, **__: Admit())  # as after a block that it passed
    assert isinstance(store.admission.decision(NODE), Admit)
    restored()()
    assert isinstance(store.admission.decision(NODE), NeedsPerson)
    store.schedulers.assign(NODE, "alpha", "r1n2", "Ada", "rack 2")
    assert isinstance(store.admission.decision(NODE), NeedsPerson)
    fleet.qualify(run_id="later")
    assert isinstance(store.admission.decision(NODE), Admit)


def test_another_machine_under_its_name_is_not_opened_by_the_old_certificate(
    kubernetes: Cluster, restored: Callable[[], Restore]
) -> None:
    store.nodes.add(fleet.new_node(NODE))
    store.schedulers.assign(NODE, "kube", "n0", "Ada", "rack 1")
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    restore = restored()
    kubernetes.create("n0")
    restore()
    for _ in range(2):
        (difference,) = service.reconcile()
        assert "another machine" in difference
    place = store.schedulers.place(NODE)
    assert place
    assert place.held


def test_a_decision_about_its_state_is_one_about_its_place(nodes: Path, restored: Callable[[], Restore]) -> None:
    in_production()
    restore = restored()
    move(NODE, State.QUARANTINE, "Ada", "smells of smoke")
    restore()
    move(NODE, State.QUARANTINE, "Ada", "it smelled of smoke")
    place = store.schedulers.place(NODE)
    assert place
    assert not place.held


def test_a_receiver_that_tells_no_state_gets_no_admission_before_a_person_decides(
    receiver: Receiver, restored: Callable[[], Restore], monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook_settings(monkeypatch, receiver, state_url="")
    store.nodes.add(fleet.new_node(NODE))
    store.schedulers.assign(NODE, "hook", "n0", "Ada", "rack 1")
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    restore = restored()
    move(NODE, State.QUARANTINE, "Ada", "smells of smoke")
    sent = len(receiver.messages)
    restore()
    service.reconcile()
    assert not service.idle([NODE])[NODE].idle
    assert len(receiver.messages) == sent
    changes.let_open(NODE, "Ada", "it is healthy", dry_run=False)
    assert len(receiver.messages) == sent + 1
    assert receiver.nodes["n0"]["open"]
