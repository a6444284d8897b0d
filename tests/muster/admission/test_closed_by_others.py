"""What Muster begins, and confirms, of a node that others have closed too."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster import store
from muster.admission import entry, service
from muster.admission.backend import Seen
from muster.admission.entry import move
from muster.errors import Refusal
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
    assert (not repair.allocated(store.nodes.get(NODE))) is free
    assert service.allocation(NODE) == "", "a person may test it"


def test_the_place_of_a_node_that_others_alone_keep_closed_is_given_up_by_a_person_alone(nodes: Path) -> None:
    in_production()
    nodes.write_text(f"{THERE} # alice: firmware\n")
    move(NODE, State.RETIRED, "Ada", "it corrupts data")
    assert not store.schedulers.places(waiting=True)
    for cluster in ("", "alpha"):
        with illegal(Refusal.STATE):
            entry.assign(NODE, cluster, "r1n2" if cluster else "", "Ada", "it leaves the fleet")
    nodes.write_text(f"{THERE}\n")
    service.reconcile()
    assert entry.assign(NODE, "", "", "Ada", "it leaves the fleet") is None
    assert "muster: " in line(nodes)


def test_the_place_of_a_node_that_others_keep_closed_is_given_up_as_a_person_chooses(nodes: Path) -> None:
    in_production()
    nodes.write_text(f"{THERE} # alice: firmware\n")
    move(NODE, State.RETIRED, "Ada", "it corrupts data")
    assert entry.assign(NODE, "", "", "Ada", "it leaves the fleet", abandon=True) is None


def test_who_runs_a_retired_node_without_muster_is_told_how_its_place_ends(nodes: Path) -> None:
    in_production()
    move(NODE, State.RETIRED, "Ada", "it runs without Muster from now on")
    for _ in range(2):
        nodes.write_text(f"{THERE}\n")
        service.reconcile()
    place = store.schedulers.place(NODE)
    assert place
    assert f"muster node remove {NODE}" in place.question
