"""What the records are asked for, to say who acts next."""

from __future__ import annotations

import pytest

from muster import store
from muster.model import stages as model
from muster.model.attention import Cause, Turn
from muster.model.repairs import Fault
from muster.model.runs import RunKey
from muster.model.states import State
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.support.plugins.statements import executed

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE, STAGES = "gpu-0001", ("intake",)


def test_incidents_of_a_broken_node_that_say_nothing_cost_no_statement() -> None:
    store.nodes.add(fleet.new_node(NODE))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")

    def statements(gpus: range) -> int:
        for gpu in gpus:
            store.repairs.open_incident(NODE, Fault("gpu_memory", f"gpu{gpu}"), "XID 95", STAGES, "standard")
        with executed() as all_:
            assert [each.cause for each in store.attention.collect()] == [Cause.QUARANTINE]
        return len(all_)

    assert statements(range(1)) == statements(range(1, 8))


def test_a_repair_that_has_just_begun_is_shown_before_it_asks_or_waits() -> None:
    store.nodes.add(fleet.new_node(NODE))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
    store.leases.acquire(NODE, RunKey("repair", "of gpu-0001"))
    store.repairs.open_incident(NODE, Fault("gpu_memory", "gpu3"), "XID 95", STAGES, "standard")
    assert [each.cause for each in store.attention.collect()] == [Cause.IN_REPAIR]


def test_a_fail_in_shadow_mode_is_a_persons_until_it_is_waived_or_its_stage_passes() -> None:
    store.nodes.add(fleet.new_node(NODE))
    store.adoption.adopt([NODE], "Ada", "it serves already")
    assert [(each.cause, each.listed) for each in store.attention.collect()] == [(Cause.UNVERIFIED, False)]
    failed = fleet.fail(NODE)
    inconclusive = fleet.begin(NODE, "inconclusive")
    store.runs.finish(inconclusive.key, Verdict.INCONCLUSIVE, "it did not answer")
    store.leases.release(inconclusive.key, "over")
    (found,) = store.attention.collect()
    assert (found.cause, found.turn, found.serving) == (Cause.UNVERIFIED, Turn.PERSON, True)
    (finding,) = store.reporting.run(failed.key).stages[0].judgement.findings
    waiver = store.waivers.give(finding.id, store.waivers.end_of("2999-12-31"), "Ada", "a spare is ordered")
    assert [each.listed for each in store.attention.collect()] == [False]
    store.waivers.revoke(waiver.id, "Ada", "it fails jobs")
    assert [each.listed for each in store.attention.collect()] == [True]
    fleet.qualify(NODE, "again", stages=STAGES)
    assert [(each.cause, each.listed) for each in store.attention.collect()] == [(Cause.UNVERIFIED, False)]


def test_a_held_verdict_says_why_it_is_held_and_not_why_the_node_was_admitted() -> None:
    store.nodes.add(fleet.new_node(NODE))
    failed = fleet.fail(NODE)
    store.nodes.move(NODE, State.REGISTERED, "Ada", "known")
    (finding,) = store.reporting.run(failed.key).stages[0].judgement.findings
    waiver = store.waivers.give(finding.id, store.waivers.end_of("2999-12-31"), "Ada", "a spare is ordered")
    again = fleet.begin(NODE, "again")
    fleet.do_stage(again, "intake", Verdict.FAIL, findings=(fleet.FINDING,))
    for stage in model.STAGES[1:]:
        fleet.do_stage(again, stage)
    store.runs.finish(again.key, Verdict.WARN, "gpu3 is slow.")
    store.leases.release(again.key, "over")
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "good enough")
    store.waivers.revoke(waiver.id, "Ada", "it fails jobs")
    (found,) = store.attention.collect()
    assert (found.cause, found.turn) == (Cause.HELD, Turn.PERSON)
    assert finding.id in found.why
    assert "good enough" not in found.why
