"""The queue of scheduler changes: what the records decide reaches the scheduler, in order, whatever happens between.

The scheduler is the worked example of docs/extending.md, whose list is a file: removed, it is a scheduler that is down.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster import records
from muster.admission import clusters, service
from muster.admission.entry import move
from muster.cli.check import of_controller
from muster.errors import BadScheduler, IllegalMove, MusterError
from muster.lifecycle.transitions import State
from muster.records import schedulers
from tests.muster import fleet
from tests.support.node_list import NodeList, NodeListSettings

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE, THERE = "gpu-0001", "r1n1"


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The list of cluster ``alpha``, which knows r1n1 and r1n2."""
    path = tmp_path / "nodes"
    path.write_text(f"{THERE}\nr1n2\n")
    monkeypatch.setitem(clusters.KINDS, "node_list", (NodeListSettings, NodeList))
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": {"kind": "node_list", "path": str(path)}}))
    return path


def placed(node: str = NODE, there: str = THERE) -> None:
    records.add_node(fleet.new_node(node))
    records.place_on_scheduler(node, "alpha", there, "Ada", "rack 1")


def in_production() -> None:
    placed()
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")


def line(nodes: Path, there: str = THERE) -> str:
    return next(each for each in nodes.read_text().splitlines() if each.split(" ")[0] == there)


def test_a_new_node_is_closed_until_it_is_admitted(nodes: Path) -> None:
    placed()
    service.reconcile()
    assert "muster: registered" in line(nodes)
    fleet.qualify()
    assert "muster:" in line(nodes)
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert line(nodes) == THERE
    assert service.idle([NODE])[NODE].idle


def test_a_change_waits_while_the_scheduler_is_down_and_the_node_is_neither_admitted_nor_idle(nodes: Path) -> None:
    placed()
    service.reconcile()
    text = nodes.read_text()
    nodes.unlink()
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    place = records.scheduler_place(NODE)
    assert place
    assert (place.waits, place.admitted, place.attempts) == (True, False, 1)
    assert not service.idle([NODE])[NODE].idle
    with pytest.raises(MusterError):
        service.allocation(NODE)
    nodes.write_text(text)
    assert not service.idle([NODE])[NODE].idle, "the admission is not carried out yet"
    service.reconcile()
    assert line(nodes) == THERE
    assert service.idle([NODE])[NODE].idle


def test_of_changes_that_wait_only_the_last_is_carried_out(nodes: Path) -> None:
    in_production()
    nodes.rename(nodes.with_suffix(".away"))
    move(NODE, State.QUARANTINE, "Ada", "noise")
    move(NODE, State.TRIAGE, "Ada", "look")
    nodes.with_suffix(".away").rename(nodes)
    service.reconcile()
    assert line(nodes).endswith("muster: noise")


def test_a_foreign_drain_stays_and_is_shown(nodes: Path) -> None:
    in_production()
    nodes.write_text(f"{THERE} # alice: bad fan\n")
    (difference,) = service.reconcile()
    assert "alice: bad fan" in difference
    assert not service.idle([NODE])[NODE].idle
    move(NODE, State.QUARANTINE, "Ada", "noise")
    assert line(nodes).endswith("alice: bad fan")


def test_a_node_in_quarantine_that_somebody_opened_is_closed_again_and_a_person_is_asked(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    in_production()
    move(NODE, State.QUARANTINE, "Ada", "noise")
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    place = records.scheduler_place(NODE)
    assert "muster: noise" in line(nodes)
    assert place
    assert place.question
    assert [mail.key.split("/")[1:3] for mail in records.outbox_pending()] == [["drained again", NODE]]
    move(NODE, State.TRIAGE, "Ada", "seen")
    place = records.scheduler_place(NODE)
    assert place
    assert not place.question


def test_any_other_difference_is_shown_and_not_corrected(nodes: Path) -> None:
    placed()
    service.reconcile()
    nodes.write_text(f"{THERE}\n")
    for _ in range(2):
        (difference,) = service.reconcile()
        assert NODE in difference
    assert line(nodes) == THERE
    nodes.write_text("")
    assert service.reconcile() == [f"{NODE}: alpha does not know {THERE}"]


def test_a_node_in_shadow_mode_is_left_alone_until_it_is_verified(nodes: Path) -> None:
    records.adopt_nodes([], "Ada", "serves", enrol=[("", fleet.new_node())])
    records.place_on_scheduler(NODE, "alpha", THERE, "Ada", "rack 1")
    nodes.write_text(f"{THERE} # muster: from before\n")
    records.hold_out(NODE, "revalidation")
    service.reconcile()
    assert line(nodes).endswith("from before")
    records.verify_node(NODE, "Ada", "acceptance protocol 12")
    service.reconcile()
    assert line(nodes) == THERE


@pytest.mark.parametrize("when", ["before the drain", "after the drain"])
def test_a_controller_that_is_killed_while_it_changes_a_node_leaves_no_drain(
    nodes: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Killed: the claim of the change stays, and nothing is noted any more."""
    in_production()
    records.acquire_lease(NODE, "revalidation", "r1")
    records.hold_out(NODE, "revalidation r1")
    change = records.claim_change(NODE)
    assert change
    if when == "after the drain":
        clusters.backend_of("alpha").withdraw(THERE, change.why)
    records.release_leases("revalidation", "r1", "its run was gone")
    assert service.carry_out(NODE), "another process may still be at it"
    monkeypatch.setattr(schedulers, "CLAIM", datetime.timedelta(0))
    later = schedulers.access.now() + datetime.timedelta(minutes=6)
    monkeypatch.setattr(schedulers.access, "now", lambda: later)
    service.reconcile()
    assert line(nodes) == THERE
    place = records.scheduler_place(NODE)
    assert place
    assert place.admitted


def test_a_change_that_is_superseded_while_it_is_carried_out_is_followed(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    real: Callable[..., None] = NodeList.withdraw

    def slow(self: NodeList, *change: object) -> None:
        real(self, *change)
        monkeypatch.setattr(NodeList, "withdraw", real)
        records.put_back(NODE, "its run is over")

    monkeypatch.setattr(NodeList, "withdraw", slow)
    records.hold_out(NODE, "revalidation r1")
    assert service.carry_out(NODE) == ""
    assert line(nodes) == THERE


def test_bad_places_are_one_sentence_and_change_nothing(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed()
    records.add_node(fleet.new_node("gpu-0002"))
    for cluster, name in (("alpha", "r9n9"), ("beta", THERE)):
        with pytest.raises(BadScheduler):
            clusters.check(cluster, [name])
    with pytest.raises(BadScheduler, match=NODE):
        records.place_on_scheduler("gpu-0002", "alpha", THERE, "Ada", "x")
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    with pytest.raises(IllegalMove):
        records.place_on_scheduler(NODE, "alpha", "r1n2", "Ada", "x")
    assert [place.name for place in records.scheduler_places()] == [THERE]
    nodes.write_text("r1n2\n")
    marks = {item.item: item.mark for item in of_controller(NODE)}
    assert marks == {"scheduler": "missing", "signing key": "ok"}


STEPS = st.lists(st.sampled_from(["out", "back", "quarantine", "down", "up", "foreign", "freed", "reconcile"]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_whatever_happens_no_foreign_drain_is_undone_and_none_of_ours_is_left(nodes: Path, steps: list[str]) -> None:
    away = nodes.with_suffix(".away")
    away.unlink(missing_ok=True)
    nodes.write_text(f"{THERE}\n")
    if not any(node.name == NODE for node in records.list_nodes()):
        in_production()
    if records.get_node(NODE).state is State.QUARANTINE:
        for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
            move(NODE, state, "Ada", "repaired")
        fleet.qualify(run_id=f"again-{len(records.list_runs(node=NODE, limit=1000))}")
        move(NODE, State.PRODUCTION, "Ada", "needed now")
    service.reconcile()
    foreign = False
    for step in steps:
        here = nodes if nodes.exists() else away
        if step == "out":
            records.hold_out(NODE, "revalidation")
        elif step == "back":
            records.put_back(NODE, "its run is over")
        elif step == "quarantine" and records.get_node(NODE).state is State.PRODUCTION:
            move(NODE, State.QUARANTINE, "Ada", "noise")
        elif step == "down" and nodes.exists():
            nodes.rename(away)
        elif step == "up" and away.exists():
            away.rename(nodes)
        elif step == "foreign":
            here.write_text(f"{THERE} # alice: fan\n")
            foreign = True
        elif step == "freed" and foreign:
            here.write_text(f"{THERE}\n")
            foreign = False
        elif step == "reconcile":
            service.reconcile()
        here = nodes if nodes.exists() else away
        assert ("alice" in here.read_text()) is foreign
    if away.exists():
        away.rename(nodes)
    records.put_back(NODE, "its run is over")
    service.reconcile()
    out = records.get_node(NODE).state is State.QUARANTINE
    assert ("muster:" in line(nodes)) is (out and not foreign)
