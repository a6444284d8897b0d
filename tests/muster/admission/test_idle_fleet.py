"""What is known of idle nodes: a requested test is due at once, and rests after each try."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import uuid
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from muster import store
from muster.admission import service
from muster.admission.entry import move
from muster.admission.idle_fleet import known
from muster.judging import health, policies
from muster.model.health import Report
from muster.model.runs import Job, RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.operators.lifecycle import revalidation
from muster.operators.testing import claims, qualification
from muster.rules.idle.capacity import Signs
from muster.rules.idle.selection import choose
from muster.rules.lifecycle.transitions import INCONCLUSIVE_BUDGET
from muster.rules.service import replay
from muster.store.database import access
from muster.store.database.decisions import CertificateRow
from muster.store.database.engine import writing
from muster_criteria.health.policy import HealthAction
from muster_criteria.health.readings import Reading
from muster_criteria.model import Verdict
from tests.muster import copied, fleet
from tests.support import node_list

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"


@pytest.fixture(autouse=True)
def serving(fleet_db: str) -> None:
    copied.in_service()


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def sign() -> Signs:
    return known([store.nodes.get(NODE)], now()).signs.get(NODE, Signs())


def retest(run_id: str, verdict: Verdict, *, stages: tuple[str, ...] = STAGES) -> None:
    lease = fleet.begin(run_id=run_id, required_stages=stages)
    for stage in stages:
        fleet.do_stage(lease, stage, Verdict.PASS if verdict is Verdict.SKIPPED else verdict)
    store.runs.finish(lease.key, verdict, "So it ended.")
    store.leases.release(lease.key, "over")


def test_an_urgent_report_is_not_answered_by_an_earlier_test_and_rests_after_a_later_one() -> None:
    health.record([Report(NODE, "epilog", (Reading("xid/79"),))], {NODE: "h100-sxm-8"})
    assert ("xid/79" in sign().requested, sign().answered) == (True, False)
    retest("later", Verdict.INCONCLUSIVE)
    assert "xid/79" in sign().requested
    assert sign().answered
    retest("preempted", Verdict.SKIPPED, stages=("intake",))
    assert sign().answered


def test_an_event_that_causes_nothing_by_itself_makes_no_test_due_once_more() -> None:
    """A burst of corrected errors demands one test, and not one after each single error for the rest of the boot."""

    def see(an_hour: float) -> bool:
        seen = Reading("edac_corrected", "mc0", count=max(int(an_hour / 6), 1), rate=an_hour)
        health.record([Report(NODE, "sweep", (seen,), "boot")], {NODE: "h100-sxm-8"})
        return "edac_corrected" in sign().requested

    assert not see(6.0)
    for turn in range(2):
        assert see(1500.0)
        assert see(6.0), "due until it is tested"
        known_nodes, policy = {NODE: store.nodes.get(NODE)}, policies.health()
        (replayed,) = replay.replay(store.health.of_node(NODE), known_nodes, policy, policy)
        assert replayed.after is HealthAction.TEST_SOONER
        retest(f"whole {turn}", Verdict.PASS)
        assert not see(6.0)


def test_a_pass_of_a_clock_that_was_ahead_hides_no_later_report(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as ahead:
        ahead.setattr(access, "now", lambda: now() + datetime.timedelta(hours=2))
        retest("ahead", Verdict.PASS)
    health.record([Report(NODE, "epilog", (Reading("xid/79"),))], {NODE: "h100-sxm-8"})
    assert "xid/79" in sign().requested
    retest("after", Verdict.PASS)
    assert "xid/79" not in sign().requested


HALVES = {"first": STAGES[: len(STAGES) // 2], "second": STAGES[len(STAGES) // 2 :], "whole": STAGES}


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(st.sampled_from(["report", "ahead", "back", *HALVES]), max_size=6))
def test_a_whole_test_is_due_until_every_stage_passed_after_the_last_report(steps: list[str]) -> None:
    """Whatever the clock says meanwhile; each example has a node of its own."""
    node, skew, untested = f"gpu-{uuid.uuid4().hex[:12]}", [0.0], set[str]()
    store.nodes.add(fleet.new_node(node))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access, "now", lambda: now() + datetime.timedelta(hours=skew[0]))
        fleet.qualify(node)
        move(node, State.PRODUCTION, "Ada", "needed now")
        for at, step in enumerate(steps):
            if step == "report":
                health.record([Report(node, "epilog", (Reading("xid/79"),))], {node: "h100-sxm-8"})
                untested = set(STAGES)
            elif step in HALVES:
                fleet.qualify(node, f"{node}__{at}", stages=HALVES[step])
                untested -= set(HALVES[step])
            else:
                skew[0] = 2.0 if step == "ahead" else 0.0
            found = known([store.nodes.get(node)], now()).signs.get(node, Signs())
            assert ("xid/79" in found.requested) is bool(untested), steps[: at + 1]


@pytest.mark.both_dialects
def test_a_test_without_a_result_is_in_vain_for_its_stages_until_one_has_a_result() -> None:
    assert dict(sign().in_vain) == {}
    retest("part", Verdict.INCONCLUSIVE, stages=("intake", "burn_in"))
    assert set(sign().in_vain) == {"intake", "burn_in"}
    retest("whole", Verdict.INCONCLUSIVE)
    assert set(sign().in_vain) == set(STAGES)
    retest("sound", Verdict.PASS, stages=("intake",))
    assert set(sign().in_vain) == set(STAGES) - {"intake"}
    retest("all", Verdict.WARN)
    assert dict(sign().in_vain) == {}
    for number in range(INCONCLUSIVE_BUDGET):
        assert dict(sign().in_vain) == {}
        retest(f"preempted {number}", Verdict.SKIPPED, stages=("intake",))
    assert set(sign().in_vain) == {"intake"}


@pytest.mark.both_dialects
def test_a_short_test_that_is_made_does_not_forget_that_whole_ones_are_interrupted() -> None:
    """Else a node whose idle times are too short for a whole test begins one after each short one, for ever."""
    skipped = []
    for number in range(INCONCLUSIVE_BUDGET):
        retest(f"whole {number}", Verdict.SKIPPED)
        skipped.append(sign().skipped)
        retest(f"short {number}", Verdict.PASS, stages=("intake", "performance"))
        skipped.append(sign().skipped)
    assert skipped == [1, 0, 2, 0, 3, 3]
    assert set(sign().in_vain) == set(STAGES) - {"intake", "performance"}
    assert set(sign().took) == {"intake", "performance"}
    retest("whole", Verdict.PASS)
    assert (sign().skipped, dict(sign().in_vain), set(sign().took)) == (0, {}, set(STAGES))


def test_the_minutes_are_those_of_the_nodes_model_at_the_level_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [store.nodes.get(NODE)]
    monkeypatch.setenv("MUSTER_REVALIDATION_LEVEL", "standard")
    standard = known(nodes, now()).minutes["cpu-generic"]
    assert standard["burn_in"] > known(nodes, now(), "short").minutes["cpu-generic"]["burn_in"] > 0.0
    unknown = dataclasses.replace(nodes[0], sku="none-such")
    assert known([unknown], now()).minutes == {}


def test_skipped_tests_are_counted_until_another_test() -> None:
    assert sign().skipped == 0
    retest("one", Verdict.SKIPPED, stages=("intake",))
    retest("two", Verdict.SKIPPED, stages=("intake",))
    assert sign().skipped == 2
    retest("whole", Verdict.PASS)
    assert sign().skipped == 0


def test_a_drain_that_requests_a_test_is_seen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only after the next housekeeping, and no longer than it stands."""
    path = tmp_path / "nodes"
    path.write_text("r1n1\n")
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": node_list.chosen(path)}))
    store.nodes.add(fleet.new_node("gpu-0002"))
    store.schedulers.assign("gpu-0002", "alpha", "r1n1", "Ada", "rack 1")
    fleet.qualify("gpu-0002")
    move("gpu-0002", State.PRODUCTION, "Ada", "needed now")
    requested = []
    for reason in ("ECC? muster:verify", ""):
        path.write_text(f"r1n1 # {reason}\n" if reason else "r1n1\n")
        found = known([store.nodes.get("gpu-0002")], now())
        requested.append(found.signs.get("gpu-0002", Signs()).requested)
    assert "muster:verify" in requested[0]
    assert requested[1] == ""


@pytest.mark.both_dialects
def test_a_new_node_is_queued_until_its_run_has_a_job(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node("new"))
    run = fleet.begin("new").key
    nodes = store.nodes.find()
    assert (known(nodes, now()).leased, known(nodes, now()).queued) == ({"new"}, {"new"})
    store.runs.record_job(Job(run.dag_id, run.run_id, "intake", "1", "running", "/j", started_at=now()))
    assert (known(nodes, now()).leased, known(nodes, now()).queued) == ({"new"}, set())
    revalidated = RunKey("node_revalidation", "again")
    store.runs.begin(revalidated, NODE, "short", "idle")
    store.leases.acquire(NODE, revalidated)
    assert known(nodes, now()).queued == set()


def test_a_whole_test_that_renews_no_certificate_is_repeated_in_its_turn_only() -> None:
    with writing() as session:
        (certificate,) = session.scalars(select(CertificateRow))
        certificate.revoked, certificate.revoked_at = "another driver", now()
    assert "another driver" in sign().requested
    retest("part", Verdict.PROVISIONAL, stages=("intake",))
    assert sign().requested
    retest("whole", Verdict.PROVISIONAL)
    assert list(store.certificates.uncertified()) == [NODE]
    assert sign().requested == ""


@pytest.mark.parametrize("verdict", [Verdict.PROVISIONAL, Verdict.INCONCLUSIVE])
def test_a_request_that_no_test_answers_becomes_a_question(
    nodes: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict
) -> None:
    """Else the node would be tested for ever, and stay closed. The drain stays the person's."""
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    monkeypatch.setenv("MUSTER_REVALIDATION_AFTER_HOURS", "0")
    monkeypatch.setattr(claims, "controller_ready", lambda: None)
    store.schedulers.assign(NODE, "alpha", "r1n1", "Ada", "rack 1")
    service.reconcile()

    def chosen() -> list[str]:
        service.reconcile()
        return [each.node for each in choose(known([store.nodes.get(NODE)], now())).chosen]

    def test(run_id: str) -> None:
        run = RunKey("node_revalidation", run_id)
        revalidation.claim(run, {"node": NODE, "level": "short"})
        lease = store.leases.get(NODE)
        assert lease
        for stage in STAGES:
            fleet.do_stage(lease, stage, verdict)
        with contextlib.nullcontext() if verdict is Verdict.PROVISIONAL else pytest.raises(AirflowFailException):
            revalidation.conclude(run)
        qualification.release(run)

    for reason in ("ECC? muster:verify", "muster:verify with the new cable"):
        nodes.write_text(f"r1n1 # {reason}\n")
        for number in range(INCONCLUSIVE_BUDGET):
            assert chosen() == [NODE]
            test(f"{reason} {number}")
        assert chosen() == []
        place = store.schedulers.place(NODE)
        assert place
        assert reason in place.question
        assert nodes.read_text() == f"r1n1 # {reason}\n"
        assert store.nodes.get(NODE).state is State.PRODUCTION
    assert {"request not answered"} <= {mail.key.split("/")[1] for mail in store.outbox.pending()}
    nodes.write_text("r1n1\n")
    service.reconcile()
    place = store.schedulers.place(NODE)
    assert place
    assert (place.question, place.verify, place.admitted) == ("", "", True)


def test_the_fleets_failures_are_learned_from_once_a_day_and_known_at_once() -> None:
    """What another version of Muster kept is learned again."""
    day = datetime.datetime(2026, 6, 1, 9, tzinfo=datetime.UTC)
    nodes = [store.nodes.get(NODE)]
    store.risk_models.keep(day.date(), "{}")
    known(nodes, day)
    kept = store.risk_models.of_day(day.date())
    assert kept
    assert kept != "{}"
    later = now() + datetime.timedelta(days=1)
    known(nodes, later)
    move(NODE, State.QUARANTINE, "Ada", "it hangs")
    first = store.risk_models.of_day(later.date())
    risk = known(nodes, later).risk
    assert risk is not None
    assert len(risk.history.faults) == 1
    assert store.risk_models.of_day(later.date()) == first
    known(nodes, later + datetime.timedelta(days=1))
    assert store.risk_models.of_day(later.date() + datetime.timedelta(days=1)) not in (None, first)
