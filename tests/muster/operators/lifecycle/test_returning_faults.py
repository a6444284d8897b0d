"""A node that served again with an open incident, and leaves service for the same fault or for another one."""

from __future__ import annotations

import pytest

from muster import store
from muster.judging import health
from muster.model.health import Report
from muster.model.states import State
from muster.operators.lifecycle import repair
from muster.store.database.engine import writing
from muster.store.machines import parts
from muster_criteria.health.readings import Reading
from tests.muster.operators.lifecycle.repairs import FAULT, KEY, Bench, begun, by_themselves
from tests.support import lives

pytestmark = pytest.mark.needs_sshd

QUESTION, AGAIN = "what is left is rma", "XID 95 on gpu3 again"


def leaves_again(check: str, device: str) -> None:
    """A person admits the node with its open incident, and the sweep withdraws it."""
    store.nodes.move("this-node", State.REGISTERED, "Ada", "the vendor does not replace it")
    lives.in_production("this-node", "short")
    seen = Reading(check, device, severity="ISOLATE")
    health.record([Report("this-node", "sweep", (seen,), "b1")], {"this-node": "cpu-generic"})
    store.health.withdraw(store.health.of_node("this-node")[0], "seen by the sweep")


def test_a_question_about_one_fault_keeps_no_other_from_its_repair(bench: Bench) -> None:
    by_themselves(bench)
    worn = begun(FAULT | {"fault": "gpu_worn_out", "device": "gpu5"})
    store.repairs.ask(worn, QUESTION)
    repair.release(KEY)
    (shown,) = store.attention.collect()
    assert str(worn) in shown.command.split()
    leaves_again("xid/95", "gpu3")
    assert [each["conf"]["device"] for each in repair.wanted()] == ["gpu3"]
    (shown,) = store.attention.collect()
    assert str(worn) not in shown.command.split()


def test_a_question_stays_where_the_records_see_another_part_in_the_slot(bench: Bench) -> None:
    by_themselves(bench)
    store.nodes.move("this-node", State.REGISTERED, "Ada", "looks sound")
    lives.in_production("this-node", "short")
    seen = Reading("xid/95", "gpu3", severity="ISOLATE")
    health.record([Report("this-node", "sweep", (seen,), "b1")], {"this-node": "cpu-generic"})
    store.health.withdraw(store.health.of_node("this-node")[0], "seen by the sweep")
    (run,) = repair.wanted()
    incident = begun({**run["conf"]})
    store.repairs.ask(incident, QUESTION)
    repair.release(KEY)
    with writing() as session:
        parts.move_part(session, "this-node", "gpu3", "1650423000077")
    assert repair.wanted() == []
    assert store.repairs.get_incident(incident).asks == QUESTION


def test_a_person_who_was_asked_about_an_incident_is_not_asked_again(bench: Bench) -> None:
    by_themselves(bench)
    worn = begun(FAULT | {"fault": "gpu_worn_out", "device": "gpu5"})
    store.repairs.ask(worn, QUESTION)
    repair.release(KEY)
    leaves_again("clock_offset", "node")
    assert repair.wanted() == []
    assert store.repairs.get_incident(worn).asks == QUESTION


def test_a_fault_that_comes_back_after_service_is_repaired_on_new_evidence(bench: Bench) -> None:
    incident = begun()
    repair.release(KEY)
    assert repair.claim(KEY, FAULT) == incident
    repair.release(KEY)
    assert store.repairs.get_incident(incident).bundle is not None
    leaves_again("xid/95", "gpu3")
    assert repair.claim(KEY, FAULT | {"reason": AGAIN}) == incident
    found = store.repairs.get_incident(incident)
    assert (found.bundle, found.why) == (None, AGAIN)
