"""What is mailed is committed with its mail: a process may be killed between any two steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster import store
from muster.admission import service
from muster.admission.entry import move
from muster.judging import policies
from muster.model.health import Report
from muster.model.repairs import Bundle, Fault
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import repair, sweep
from muster.operators.testing import block
from muster.reporting import notices
from muster_criteria.cluster.rack import RackState, Trouble
from muster_criteria.health.readings import Reading
from tests.muster import copied, fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE, KEY = "n1", RunKey("repair", "n1__1")


class Killed(BaseException):
    """What ends a process: nothing handles it."""


@pytest.fixture
def serving(fleet_db: object) -> None:
    copied.records(_serving)


def _serving() -> None:
    for number in range(8):
        store.nodes.add(fleet.new_node(f"n{number}"))
        fleet.qualify(f"n{number}")
        move(f"n{number}", State.PRODUCTION, "Ada", "needed")
    store.health.record(
        [Report(NODE, "sweep", (Reading("row_remap_pending", "gpu3", bad=True),), "b1")], policies.health()
    )


def under_repair() -> tuple[int, int]:
    """An incident with its evidence, and the attempt at it that is under way."""
    store.nodes.add(fleet.new_node(NODE))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
    store.leases.acquire(NODE, KEY)
    incident = store.repairs.open_incident(NODE, Fault("gpu_memory", "gpu3"), "XID 95", ("intake",), "standard").id
    store.repairs.keep_bundle(incident, Bundle("/archive/bundle", "ab" * 32, 100))
    return incident, store.repairs.reserve(incident, "reboot", KEY).id


def killed_before_its_mail(act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(notices, "notify", kill)
        with pytest.raises(Killed):
            act()


@pytest.mark.both_dialects
@pytest.mark.usefixtures("serving")
def test_no_node_leaves_service_without_its_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    killed_before_its_mail(sweep.act, monkeypatch)
    assert store.nodes.get(NODE).state is State.PRODUCTION
    waiting: list[int] = []
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    monkeypatch.setattr(service, "carry_out", lambda _node: waiting.append(len(store.outbox.pending())) or "")
    sweep.act()
    assert store.nodes.get(NODE).state is State.QUARANTINE
    assert waiting == [1]


@pytest.mark.usefixtures("serving")
def test_a_scheduler_that_has_not_got_the_drain_is_mailed_after_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    monkeypatch.setattr(service, "carry_out", lambda _node: "slurmctld-down")
    (done,) = sweep.act()
    _left, waits = (store.outbox.message(each.id) for each in store.outbox.pending())
    assert "slurmctld-down" in done
    assert b"slurmctld-down" in waits


def test_no_rack_is_held_without_its_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    state = RackState("r1", (NODE,), ((Trouble.IMEX, "IMEX is not up"),), held=(NODE,))

    def hold() -> None:
        block._hold_racks(KEY, [state], simulated=False)

    killed_before_its_mail(hold, monkeypatch)
    assert store.racks.held() == []
    hold()
    assert [each.rack for each in store.racks.held()] == ["r1"]


def test_no_attempt_ends_and_no_person_is_asked_without_its_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    incident, attempt = under_repair()
    found = store.repairs.get_incident(incident)
    killed_before_its_mail(lambda: repair._ask(found, "the budget is used up"), monkeypatch)
    assert not store.repairs.get_incident(incident).asks
    killed_before_its_mail(lambda: repair.act(KEY, incident), monkeypatch)
    (left,) = store.repairs.history(found)
    assert (left.id, left.outcome) == (attempt, None)
