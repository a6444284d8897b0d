"""PROVISIONAL verdicts re-evaluated: what they move, what is kept, and what stands in the way."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from sqlalchemy import select

from muster import store
from muster.errors import NodeLeased, Refusal
from muster.model.attention import Turn
from muster.model.runs import Run, RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.rules.lifecycle.waivers import Standing
from muster.store.database.decisions import CertificateRow
from muster.store.database.engine import writing
from muster.store.database.models import NodeRow
from muster.store.testing.reevaluations import Replacement
from muster_criteria.model import Coverage, Gap, Judgement, Lack, Verdict
from tests.muster import fleet
from tests.support.refusals import illegal

NODE, OPEN = "gpu-0001", "performance"
UNJUDGED = Coverage(2, 2, 1, (), (Gap(Lack.UNJUDGED, "nothing to judge it by", "burn_rate", "gpu0"),))


@pytest.fixture
def waiting(fleet_db: str) -> Run:
    """A node that qualified with one stage PROVISIONAL; gives the run."""
    store.nodes.add(fleet.new_node(NODE))
    return provisional("new")


def provisional(name: str) -> Run:
    lease = fleet.begin(NODE, f"{NODE}__{name}")
    for stage in STAGES:
        if stage == OPEN:
            fleet.do_stage(lease, stage, Verdict.PROVISIONAL, coverage=UNJUDGED)
        else:
            fleet.do_stage(lease, stage)
    run = store.runs.finish(lease.key, Verdict.PROVISIONAL, "Not judged: burn_rate.")
    store.leases.release(lease.key, "over")
    return run


def again(run: Run, verdict: Verdict, stage: str = OPEN, standing: Standing | None = None) -> Run:
    result, _ = fleet.result(stage, node=NODE)
    found = (fleet.finding(),) if verdict is Verdict.FAIL else ()
    judgement: Judgement = dataclasses.replace(fleet.judgement(stage, verdict, findings=found), snapshot="abc")
    replacement = Replacement(result, judgement, standing or holding())
    return store.reevaluations.record(run, [replacement], verdict, f"{verdict} now.")


def holding() -> Standing:
    return store.waivers.standing_at(NODE, datetime.datetime.now(datetime.UTC))


@pytest.mark.parametrize(
    ("sku", "others", "turn"),
    [
        ("h100-sxm-8", State.REGISTERED, Turn.MUSTER),
        ("h100-sxm-8", State.RMA, Turn.PERSON),
        ("cpu-generic", State.REGISTERED, Turn.PERSON),  # it compares nothing
    ],
)
def test_what_no_peers_will_judge_is_a_persons_turn(waiting: Run, sku: str, others: State, turn: Turn) -> None:
    for name in ("gpu-0002", "gpu-0003"):
        store.nodes.add(fleet.new_node(name))
    with writing() as session:
        for row in session.scalars(select(NodeRow)):
            row.sku, row.state = sku, row.state if row.name == NODE else str(others)
    assert [each.turn for each in store.attention.collect() if each.node == NODE] == [turn]


def test_what_could_not_be_judged_waits_until_a_run_takes_the_node(waiting: Run) -> None:
    (judgement,) = store.reevaluations.provisional()[NODE]
    assert (judgement.stage, judgement.verdict, judgement.run_id) == (OPEN, Verdict.PROVISIONAL, waiting.run_id)
    fleet.begin(NODE, f"{NODE}__next")
    assert store.reevaluations.provisional() == {}


@pytest.mark.both_dialects
def test_a_pass_stands_instead_and_the_node_stays(waiting: Run) -> None:
    before = {judgement.stage: judgement for judgement in store.verdicts.latest(NODE)}[OPEN]
    sent = store.raw.stage_bytes(waiting.key, OPEN)
    run = again(waiting, Verdict.PASS)
    assert (run.verdict, run.headline, run.state_after) == (Verdict.PASS, "PASS now.", State.QUALIFIED)
    assert run.ended_at == waiting.ended_at, "it was measured when it was"
    judgement = {judgement.stage: judgement for judgement in store.verdicts.latest(NODE)}[OPEN]
    assert (judgement.verdict, judgement.full_coverage, judgement.snapshot) == (Verdict.PASS, True, "abc")
    assert judgement.recorded_at == before.recorded_at
    assert store.reevaluations.provisional() == {}
    assert store.raw.stage_bytes(waiting.key, OPEN) == sent, "what the node sent is still there"
    report = store.reporting.run(waiting.key)
    (stage,) = (stage for stage in report.stages if stage.judgement.stage == OPEN)
    assert stage.judgement.notes[-1].startswith("PROVISIONAL at first")
    assert stage.judgement.observations
    event = store.nodes.events(NODE)[-1]
    assert (event.evidence["reevaluated"], event.evidence["verdict"]) == (f"{waiting.dag_id}/{waiting.run_id}", "PASS")


def test_a_fail_takes_the_node_out(waiting: Run) -> None:
    run = again(waiting, Verdict.FAIL)
    assert run.state_after == store.nodes.get(NODE).state == State.QUARANTINE
    assert [each.finding.device for each in store.verdicts.open_findings(NODE)] == ["gpu3"]


def test_a_warning_is_an_open_finding(waiting: Run) -> None:
    assert again(waiting, Verdict.WARN).state_after is State.QUALIFIED
    assert store.runs.get(waiting.key).verdict is Verdict.WARN


def test_a_node_that_a_run_holds_is_that_runs(waiting: Run) -> None:
    fleet.begin(NODE, f"{NODE}__next")
    with pytest.raises(NodeLeased):
        again(waiting, Verdict.PASS)
    assert store.runs.get(waiting.key).verdict is Verdict.PROVISIONAL


def test_a_node_that_a_person_moved_stays_where_it_was_put(waiting: Run) -> None:
    store.nodes.move(NODE, State.RETIRED, "ada", "it is sold")
    assert store.reevaluations.provisional() == {}
    with illegal(Refusal.STATE):
        again(waiting, Verdict.FAIL)
    assert store.nodes.get(NODE).state is State.RETIRED


@pytest.mark.parametrize(
    ("verdict", "then"),
    [(Verdict.PASS, State.PRODUCTION), (Verdict.WARN, State.PRODUCTION), (Verdict.FAIL, State.QUARANTINE)],
)
def test_a_node_that_serves_is_judged_again_too(waiting: Run, verdict: Verdict, then: State) -> None:
    """A person admitted it while nothing could judge it."""
    store.nodes.move(NODE, State.PRODUCTION, "ada", "we need it")
    assert OPEN in store.verdicts.stage_tests()[NODE]
    assert list(store.reevaluations.provisional()) == [NODE]
    assert again(waiting, verdict).state_after is then
    assert store.nodes.get(NODE).state is then
    assert (OPEN in store.verdicts.stage_tests()[NODE]) is (verdict is not Verdict.FAIL)


@pytest.mark.parametrize("held", ["", f"{fleet.DAG}/later"])
def test_a_pass_of_a_node_that_serves_renews_its_certificate(waiting: Run, held: str) -> None:
    """Its tests end PROVISIONAL and renew nothing, and it does not enter production again."""
    store.nodes.move(NODE, State.PRODUCTION, "ada", "we need it")
    with writing() as session:
        session.get_one(NodeRow, NODE).held_run = held
        for certificate in session.scalars(select(CertificateRow)):
            certificate.expires_at = certificate.issued_at
    again(waiting, Verdict.PASS)
    assert list(store.certificates.uncertified()) == ([NODE] if held else [])


def test_what_later_runs_left_open_stays_open(waiting: Run) -> None:
    """Of a later run that failed and is held, and of inconclusive ones."""
    store.nodes.move(NODE, State.PRODUCTION, "ada", "we need it")
    with writing() as session:
        row = session.get_one(NodeRow, NODE)
        row.held_run, row.inconclusive = f"{fleet.DAG}/later", 2
    assert again(waiting, Verdict.PASS).state_after is State.PRODUCTION
    node = store.nodes.get(NODE)
    assert (node.held_run, node.inconclusive) == (RunKey(fleet.DAG, "later"), 2)


def test_only_what_stands_and_is_provisional_is_reevaluated(waiting: Run) -> None:
    with illegal(Refusal.NOT_PROVISIONAL):
        again(waiting, Verdict.PASS, "intake")
    later = provisional("later")
    with illegal(Refusal.NOT_PROVISIONAL):
        again(waiting, Verdict.PASS)
    assert again(later, Verdict.PASS).verdict is Verdict.PASS


def test_a_waiver_given_or_revoked_meanwhile_stands_in_the_way(fleet_db: str) -> None:
    """The verdict was decided without it, or by it: the next re-evaluation decides."""
    store.nodes.add(fleet.new_node(NODE))
    failed = fleet.fail(NODE, f"{NODE}__failed")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move(NODE, state, "Ada", "it is known to be slow")
    (finding,) = store.reporting.run(failed.key).stages[0].judgement.findings
    run = provisional("new")
    before = holding()
    given = store.waivers.give(finding.id, holding().moment + datetime.timedelta(days=1), "Ada", "known")
    with illegal(Refusal.WAIVERS_CHANGED):
        again(run, Verdict.PASS, standing=before)
    between = holding()
    store.waivers.revoke(given.id, "Ada", "no longer")
    with illegal(Refusal.WAIVERS_CHANGED):
        again(run, Verdict.PASS, standing=between)
    assert store.runs.get(run.key).verdict is Verdict.PROVISIONAL
    assert again(run, Verdict.PASS).verdict is Verdict.PASS
