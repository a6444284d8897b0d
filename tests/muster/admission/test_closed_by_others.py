"""What Muster begins, and confirms, of a node that others have closed too."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster import store
from muster.admission import entry, service
from muster.admission.backend import Seen
from muster.admission.entry import move
from muster.errors import Refusal
from muster.integration.runid import of_pick
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import repair
from tests.muster import fleet
from tests.muster.admission.listed import NODE, THERE, in_production, line
from tests.support.node_list import NodeList
from tests.support.refusals import illegal

pytestmark = pytest.mark.usefixtures("fleet_db")


@pytest.mark.parametrize(
    ("seen", "free"),
    [
        (Seen(False, ours=True), True),
        (Seen(False, foreign="drained by alice: hands in it"), False),
        (Seen(False, foreign="drained by alice: ECC? muster:verify"), True),
        (Seen(False, foreign="drained by slurm: Kill task failed", by_scheduler=True), True),
        (Seen(False, ours=True, both=True, foreign="cordoned"), False),
        (Seen(False, ours=True, both=True, apart="down", foreign="taken down by alice: psu"), False),
    ],
)
def test_what_others_closed_is_neither_repaired_nor_tested_without_a_person(
    seen: Seen, free: bool, nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production()
    lease = fleet.begin(NODE, "again")
    service.withdraw_for_test(NODE, "tested while idle")
    fleet.do_stage(lease, "intake")
    store.leases.release(lease.key, "over")
    waits = store.nodes.get(NODE)
    move(NODE, State.QUARANTINE, "Ada", "noise")
    monkeypatch.setattr(NodeList, "look", lambda _, names: dict.fromkeys(names, seen))
    assert waits.state is State.REVALIDATION
    assert (not service.in_use(waits)) is free
    node = store.nodes.get(NODE)
    for key in (None, RunKey("repair", of_pick(NODE, "repair", "2026-11-30 10:00"))):
        assert (repair.allocated(node, key) == ("", "")) is free
    assert repair.allocated(node, RunKey("repair", "gpu-0001__1")) == ("", ""), "a person ordered it"
    assert service.allocation(NODE) == "", "a person may test it"


def test_a_retired_node_stays_closed_once_others_lift_what_they_closed(nodes: Path) -> None:
    in_production()
    nodes.write_text(f"{THERE} # alice: firmware\n")
    move(NODE, State.QUARANTINE, "Ada", "it corrupts data")
    assert line(nodes) == f"{THERE} # alice: firmware"
    move(NODE, State.RETIRED, "Ada", "it corrupts data")
    assert line(nodes).startswith(f"{THERE} # muster: ")
    assert "alice: firmware" in line(nodes)


@pytest.mark.parametrize(("cluster", "there"), [("", ""), ("alpha", "r1n2")])
@pytest.mark.parametrize("state", [State.QUARANTINE, State.RETIRED])
def test_a_place_that_ends_stays_closed_once_others_lift_what_they_closed(
    state: State, cluster: str, there: str, nodes: Path
) -> None:
    in_production()
    move(NODE, state, "Ada", "it corrupts data")
    nodes.write_text(f"{THERE} # alice: firmware\n")
    with store.engine.rehearsal():
        entry.assign(NODE, cluster, there, "Ada", "it leaves", dry_run=True)
        entry.assign(NODE, "alpha", THERE, "Ada", "a repeated script")
    assert line(nodes) == f"{THERE} # alice: firmware"
    entry.assign(NODE, cluster, there, "Ada", "it leaves")
    assert line(nodes).startswith(f"{THERE} # muster: ")


def test_a_place_whose_end_is_refused_stays_as_others_closed_it(nodes: Path) -> None:
    in_production()
    fleet.begin(NODE, "again")
    service.withdraw_for_test(NODE, "tested while idle")
    nodes.write_text(f"{THERE} # alice: firmware\n")
    with illegal(Refusal.LEASED):
        entry.assign(NODE, "", "", "Ada", "it leaves the fleet")
    assert line(nodes) == f"{THERE} # alice: firmware"


def test_a_place_that_may_not_be_closed_ends_as_a_person_chooses(nodes: Path) -> None:
    in_production()
    move(NODE, State.RETIRED, "Ada", "it corrupts data")
    nodes.unlink()
    with illegal(Refusal.STATE):
        entry.assign(NODE, "", "", "Ada", "it leaves the fleet")
    assert entry.assign(NODE, "", "", "Ada", "it leaves the fleet", abandon=True) is None


def test_a_retired_node_that_is_opened_again_asks_with_the_way_to_end_its_place(nodes: Path) -> None:
    in_production()
    move(NODE, State.RETIRED, "Ada", "it runs without Muster from now on")
    for _ in range(2):
        nodes.write_text(f"{THERE}\n")
        service.reconcile()
    place = store.schedulers.place(NODE)
    assert place
    assert f"muster node remove {NODE}" in place.question
