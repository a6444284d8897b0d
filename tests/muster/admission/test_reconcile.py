"""What schedulers show, compared with what is wanted: stored, corrected where it is ours, and stated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from muster import store
from muster.admission import service
from muster.admission.backend import Seen
from muster.admission.entry import move
from muster.errors import LeftAlone, SchedulerDown
from muster.model.attention import Cause, Turn
from muster.model.events import Evidence
from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import writing
from muster_criteria.model import Severity, Verdict
from tests.muster import fleet
from tests.muster.admission.listed import NODE, THERE, in_production, line, placed, revalidate
from tests.support.node_list import NodeList

pytestmark = pytest.mark.usefixtures("fleet_db")


def test_how_the_scheduler_shows_a_node_is_stored_and_what_others_do_there_is_history(nodes: Path) -> None:
    in_production()
    service.reconcile()
    assert store.schedulers.places()[0].shown == "open"
    before = len(store.nodes.events(NODE))
    nodes.write_text(f"{THERE} # alice: bad fan\n")
    service.reconcile()
    service.reconcile()
    assert store.schedulers.places()[0].shown == "closed: alice: bad fan"
    (found,) = store.attention.collect()
    assert (found.cause, found.turn, found.serving) == (Cause.CLOSED, Turn.SCHEDULER, False)
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    assert store.attention.collect() == []
    said = [event.reason for event in store.nodes.events(NODE)[before:]]
    assert len(said) == 2, "its drain and its end, each once"
    assert "alice: bad fan" in said[0]


def test_admissions_that_fail_delay_a_look_by_one_budget_and_take_turns(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a connection's timeout, and a whole rack may be away from Muster alone. One that failed often before
    waits for no rack that fails since.
    """
    names = [f"gpu-{number:04}" for number in range(4)]
    nodes.write_text("".join(f"{name}\n" for name in names))
    asked: list[str] = []

    def away(node: str) -> None:
        asked.append(node)
        raise LeftAlone("no route to host")

    def wait(*names: str) -> None:
        for name in names:
            placed(name, name)
            fleet.qualify(name)
            move(name, State.PRODUCTION, "Ada", "needed now", dry_run=True)

    monkeypatch.setattr("muster.admission.carrying._end_tests", away)
    monkeypatch.setattr("muster.admission.carrying.FAILING_S", 1e-9)
    wait(names[0])
    for _ in range(9):
        service.reconcile()
    wait(*names[1:])
    asked.clear()
    for looks in range(1, 2 * len(names) + 1):
        service.reconcile()
        assert len(asked) == looks
    assert asked == 2 * [*names[1:], names[0]]


@pytest.mark.parametrize("tested", [False, True])
def test_a_node_that_waits_in_revalidation_is_closed_again_unless_a_run_tests_it(nodes: Path, tested: bool) -> None:
    in_production()
    lease = revalidate()
    fleet.do_stage(lease, "intake", Verdict.WARN, findings=(fleet.finding(severity=Severity.WARNING),))
    store.runs.finish(lease.key, Verdict.INCONCLUSIVE, "no end")
    if not tested:
        store.leases.release(lease.key, "over")
    service.carry_out(NODE)
    assert store.nodes.get(NODE).state is State.REVALIDATION
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    assert ("muster: " in line(nodes)) is not tested


def test_a_node_in_quarantine_that_somebody_opened_is_closed_again_and_a_person_is_asked(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    in_production()
    move(NODE, State.QUARANTINE, "Ada", "noise")
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    place = store.schedulers.place(NODE)
    assert "muster: noise" in line(nodes)
    assert place
    assert place.question
    assert [mail.key.split("/")[1:3] for mail in store.outbox.pending()] == [["drained again", NODE]]
    move(NODE, State.TRIAGE, "Ada", "seen")
    place = store.schedulers.place(NODE)
    assert place
    assert not place.question
    for _ in range(3):  # the same question, which stays open, is mailed once
        nodes.write_text(f"{THERE}\n")
        service.reconcile()
    assert len(store.outbox.pending()) == 2, "asked again on the same day"


def test_a_drain_that_somebody_lifts_leaves_the_one_that_muster_wants(nodes: Path) -> None:
    in_production()
    nodes.write_text(f"{THERE} # alice: bad fan\n")
    move(NODE, State.QUARANTINE, "Ada", "noise")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        move(NODE, state, "Ada", "repaired")
    service.reconcile()
    assert "bad fan" in line(nodes)
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    place = store.schedulers.place(NODE)
    assert "muster: " in line(nodes)
    assert place
    assert not place.question


def test_muster_s_drain_that_somebody_lifts_or_a_reboot_loses_is_set_again_until_muster_admits_the_node(
    nodes: Path,
) -> None:
    in_production()
    move(NODE, State.QUARANTINE, "Ada", "noise")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        move(NODE, state, "Ada", "repaired")
    service.reconcile()
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    assert "muster: registered: repaired" in line(nodes)
    place = store.schedulers.place(NODE)
    assert place
    assert not place.question, "it waits for no person"
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    place = store.schedulers.place(NODE)
    assert place
    assert place.question, "somebody or something opens it again and again"
    assert line(nodes) != THERE
    fleet.qualify(NODE, "again")
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert line(nodes) == THERE


def test_the_question_about_a_lost_drain_ends_when_the_node_enters_service(nodes: Path) -> None:
    """Also without a person: else it would keep the node from every test until one takes it out."""
    in_production()
    move(NODE, State.REGISTERED, "Ada", "new image")
    for _ in range(2):
        nodes.write_text(f"{THERE}\n")
        service.reconcile()
    nodes.write_text(f"{THERE} # alice: muster:verify\n")
    service.reconcile()
    assert [bool(place.question) for place in store.schedulers.places()] == [True]
    fleet.qualify(NODE, "again")
    with writing() as session:
        row, proof = access.node_row(session, NODE, lock=True), Evidence(verdict=Verdict.PASS, full_coverage=True)
        access.move(session, row, State.PRODUCTION, "muster", "spare", dataclasses.replace(proof, replaces="gpu-0009"))
    assert [place.question for place in store.schedulers.places()] == [""]


def test_a_drain_that_was_lost_before_the_node_moved_is_set_for_its_new_state(nodes: Path) -> None:
    """A slurmctld that is killed before it has stored a drain returns without it; found by a campaign."""
    in_production()
    move(NODE, State.QUARANTINE, "Ada", "smells of smoke")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        move(NODE, state, "Ada", "repaired")
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    assert "muster: registered: repaired" in line(nodes)
    assert service.reconcile() == []


def test_a_scheduler_shows_why_a_node_is_out_of_service_now_and_not_why_it_left(nodes: Path) -> None:
    in_production()
    move(NODE, State.QUARANTINE, "Ada", "gpu3 is lost")
    for state in (State.TRIAGE, State.REPAIR):
        move(NODE, state, "Ada", "gpu3 is replaced")
    service.reconcile()
    assert line(nodes).endswith("muster: gpu3 is lost"), "what is wrong stays visible"
    move(NODE, State.REGISTERED, "Ada", "gpu3 was replaced")
    assert service.reconcile() == []
    assert "muster: registered: gpu3 was replaced" in line(nodes)
    place = store.schedulers.place(NODE)
    assert place
    assert (place.waits, place.done_why) == (False, place.why)
    fleet.qualify(run_id="again")
    service.reconcile()
    assert "muster: qualified: " in line(nodes)


def test_the_reason_of_somebody_else_stays(nodes: Path) -> None:
    in_production()
    move(NODE, State.QUARANTINE, "Ada", "gpu3 is lost")
    nodes.write_text(f"{THERE} # alice: mine\n")
    move(NODE, State.TRIAGE, "Ada", "seen")
    move(NODE, State.REGISTERED, "Ada", "gpu3 was replaced")
    service.reconcile()
    assert line(nodes) == f"{THERE} # alice: mine"


def marks_lost(patch: pytest.MonkeyPatch, meanwhile: Callable[[], object] = lambda: None, **shown: Any) -> None:
    """The next look shows the nodes without marks; ``meanwhile`` happens directly after it."""
    real = NodeList.look

    def look(self: NodeList, names: Collection[str]) -> dict[str, Seen]:
        patch.setattr(NodeList, "look", real)
        seen = {name: dataclasses.replace(each, marked=False, **shown) for name, each in real(self, names).items()}
        meanwhile()
        return seen

    patch.setattr(NodeList, "look", look)


def test_housekeeping_opens_no_node_that_was_quarantined_while_it_looked(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    marks_lost(monkeypatch, lambda: move(NODE, State.QUARANTINE, "Ada", "noise"))
    service.reconcile()
    assert line(nodes).endswith("muster: noise")


def test_housekeeping_asks_about_no_node_that_returned_to_service_while_it_looked(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    move(NODE, State.QUARANTINE, "Ada", "noise")
    nodes.write_text(f"{THERE}\n")

    def repaired() -> None:
        for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
            move(NODE, state, "Ada", "repaired")
        fleet.qualify(NODE, "again")
        move(NODE, State.PRODUCTION, "Ada", "needed now")

    marks_lost(monkeypatch, repaired)
    service.reconcile()
    place = store.schedulers.place(NODE)
    assert place
    assert (line(nodes), place.question) == (THERE, "")


def test_lost_marks_that_cannot_be_set_now_wait_and_stop_nothing_else(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    placed("gpu-0002", "r1n2")
    fleet.qualify("gpu-0002")
    move("gpu-0002", State.QUARANTINE, "Ada", "noise")
    nodes.write_text(f"{THERE}\nr1n2\n")

    def refuse(*_: object) -> None:
        raise SchedulerDown("away")

    with monkeypatch.context() as patch:
        patch.setattr(NodeList, "admit", refuse)
        marks_lost(patch)
        service.reconcile()
    place = store.schedulers.place(NODE)
    assert place
    assert (place.waits, place.last_error) == (True, "away")
    assert line(nodes, "r1n2").endswith("muster: noise")
    service.reconcile()
    place = store.schedulers.place(NODE)
    assert place
    assert place.admitted


def test_any_other_difference_is_shown_and_not_corrected(nodes: Path) -> None:
    in_production()
    nodes.write_text("")
    (difference,) = service.reconcile()
    assert THERE in difference


def test_admissions_that_wait_for_maintenance_cost_one_question_and_no_other_its_change(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.write_text("".join(f"n{number}\n" for number in range(6)))
    for number in range(6):
        placed(f"gpu-{number}", f"n{number}")
        fleet.qualify(f"gpu-{number}")
    real, asked = NodeList.look, []

    def look(self: NodeList, names: Collection[str]) -> dict[str, Seen]:
        asked.append(len(names))
        return {
            name: dataclasses.replace(each, open=False, apart="in maintenance") if name != "n5" else each
            for name, each in real(self, names).items()
        }

    def left_alone(*_: object) -> None:
        raise LeftAlone("it is in maintenance")

    with monkeypatch.context() as patch:
        patch.setattr(NodeList, "admit", left_alone)
        for number in range(6):
            move(f"gpu-{number}", State.PRODUCTION, "Ada", "needed now")
    monkeypatch.setattr(NodeList, "look", look)
    service.reconcile()
    assert asked == [6, 6], "before the changes, and after them"
    assert [place.node for place in store.schedulers.places() if place.admitted] == ["gpu-5"]


def test_a_cluster_that_shows_what_cannot_be_read_stops_no_other(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes count as not idle, and its changes wait."""
    in_production()
    store.nodes.add(fleet.new_node("gpu-0002"))
    fleet.qualify("gpu-0002")
    move("gpu-0002", State.PRODUCTION, "Ada", "needed now")

    def lie(*_: object, **_how: object) -> None:
        raise KeyError("spec")

    for method in ("look", "withdraw"):
        monkeypatch.setattr(NodeList, method, lie)
    answers = service.idle([NODE, "gpu-0002"])
    assert (answers[NODE].idle, answers["gpu-0002"].idle) == (False, True)
    move(NODE, State.QUARANTINE, "Ada", "noise")
    assert any("alpha" in line for line in service.reconcile())
    place = store.schedulers.place(NODE)
    assert place
    assert (place.waits, bool(place.last_error)) == (True, True)


def test_a_place_that_is_removed_while_schedulers_are_reconciled_ends_no_other(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed()
    store.nodes.add(fleet.new_node("gpu-0002"))
    store.schedulers.assign("gpu-0002", "alpha", "r1n2", "Ada", "joins")
    withdraw = NodeList.withdraw

    def removed_meanwhile(self: NodeList, name: str, *rest: Any, **how: Any) -> None:
        withdraw(self, name, *rest, **how)
        if name == "r1n1":
            store.schedulers.assign(NODE, "", "", "Ada", "taken out while it is closed")

    monkeypatch.setattr(NodeList, "withdraw", removed_meanwhile)
    service.reconcile()
    assert store.schedulers.place(NODE) is None
    other = store.schedulers.place("gpu-0002")
    assert other is not None
    assert other.done == "withdrawn"
