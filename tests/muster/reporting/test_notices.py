"""Each event is a notice of its own, and each notice about simulated nodes has their mark."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.admission.entry import move
from muster.judging import policies
from muster.model.health import Report
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import sweep
from muster.operators.testing import block
from muster.reporting import notices
from muster_criteria.cluster.rack import RackState, Trouble
from muster_criteria.health.readings import Reading
from tests.muster import fleet
from tests.muster.reporting.rules import queued

pytestmark = pytest.mark.usefixtures("fleet_db", "no_server")


@pytest.fixture(autouse=True)
def reader(no_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")


def serve(*names: str, simulated: bool = False) -> None:
    for name in names:
        store.nodes.add(fleet.new_node(name, simulated=simulated))
        fleet.qualify(name)
        move(name, State.PRODUCTION, "Ada", "needed")


def show(check: str, *names: str, boot: str = "b1", times: int = 1) -> None:
    seen = (Reading(check, "gpu1" if check == "gpu_lost" else "", bad=True),)
    for _ in range(times):
        store.health.record([Report(name, "sweep", seen, boot) for name in names], policies.health())


def subjects() -> list[str]:
    return [subject.removeprefix("[Muster] ") for _, subject, _ in queued()]


def test_a_node_that_leaves_service_twice_in_a_day_for_the_same_is_mailed_twice() -> None:
    serve("a", "b", "c")
    show("gpu_lost", "a", times=2)
    sweep.act()
    sweep.act()
    assert len(queued()) == 1
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        move("a", state, "Ada", "gpu1 was reseated")
    fleet.qualify("a", "again")
    move("a", State.PRODUCTION, "Ada", "it is well")
    show("gpu_lost", "a", boot="b2", times=2)
    sweep.act()
    assert store.nodes.get("a").state is State.QUARANTINE
    assert len(queued()) == 2


def test_a_rack_that_another_block_holds_again_on_the_same_day_is_mailed_again() -> None:
    state = RackState("r1", ("a",), ((Trouble.IMEX, "IMEX is not up"),), held=("a",))
    for run in ("r1", "r2"):
        block._hold_racks(RunKey("cluster_validation", run), [state], simulated=False)
        store.racks.release("r1", "Ada", "IMEX is up")
    assert len(queued()) == 2


@pytest.mark.parametrize("simulated", [False, True])
def test_notices_have_the_mark_of_simulated_nodes_and_no_others(simulated: bool) -> None:
    names = [f"n{each}" for each in range(8)]
    serve(*names, simulated=simulated)
    serve("other", simulated=not simulated)
    show("all_ports_down", "n0")
    show("gpu_lost", "n1", times=2)
    sweep.act()
    show("port_down", *names[2:])
    sweep.act()
    state = RackState("r1", ("n2",), ((Trouble.IMEX, "IMEX is not up"),), held=("n2",))
    block._hold_racks(RunKey("cluster_validation", "r1"), [state], simulated=simulated)
    notices.notify("delivery/n3__1", "delivery n3__1 was not received", of="n3")
    notices.notify("delivery/nobody__1", "delivery nobody__1 was not received", of="nobody")
    *found, unknown = subjects()
    assert len(found) >= 5
    assert {each.startswith("[simulated] ") for each in found} == {simulated}
    assert not unknown.startswith("[simulated]")


@pytest.mark.parametrize(
    ("check", "nodes", "state"), [("all_ports_down", 1, True), ("port_down", 6, True), ("kernel/network", 6, None)]
)
def test_what_returns_on_the_same_day_is_mailed_again(check: str, nodes: int, state: bool | None) -> None:
    names = [f"n{each}" for each in range(6)]
    serve(*names)
    now = store.clock.now()
    for hours, bad in ((9, True), (9, True), (8, False), (5, False), (0, True), (0, True)):
        if bad or state:
            reports = [Report(name, "sweep", (Reading(check, bad=state and bad),), "b1") for name in names[:nodes]]
            store.health.record(reports, policies.health(), now - datetime.timedelta(hours=hours))
        sweep.act()
        assert len(queued()) == (1 if hours else 2)


def test_real_and_simulated_nodes_of_a_place_have_notices_of_their_own() -> None:
    for simulated in (False, True):
        names = [f"{'s' if simulated else 'r'}{each}" for each in range(6)]
        serve(*names, simulated=simulated)
        show("port_down", *names)
    for _ in range(2):
        sweep.act()
    assert sorted(each.startswith("[simulated] ") for each in subjects()) == [False, True]


def test_questions_about_real_nodes_give_a_mail_its_subject() -> None:
    for name in ("a", "b"):
        store.nodes.add(fleet.new_node(name, simulated=name == "a"))
        key = RunKey("admission", name)
        store.questions.put(key, name, store.questions.newest(name), f"Admit {name}?", ["Admit", "RMA"])
        if name == "a":
            notices.tell_of_questions()
            store.questions.put(RunKey("admission", "a2"), "a", store.questions.newest("a"), "Admit a?", ["Admit"])
    notices.tell_of_questions()
    assert [each.split()[0] for each in subjects()] == ["[simulated]", "b"]
