"""The table of transitions, and what the end of a run does to a node."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from syrupy.assertion import SnapshotAssertion

from muster.errors import IllegalMove, Refusal
from muster.model.events import Evidence
from muster.model.runs import RunKey
from muster.model.stages import CLUSTER_STAGES, STAGES
from muster.model.states import IN_FLIGHT, SERVING, State
from muster.rules.lifecycle.decisions import NOT_PERSONS
from muster.rules.lifecycle.transitions import (
    INCONCLUSIVE_BUDGET,
    TRANSITIONS,
    check_move,
    closing,
    path_to_stage,
    person_moves,
    steps,
)
from muster_criteria.cluster import model as cluster_model
from muster_criteria.model import Verdict
from tests.support.refusals import illegal
from tests.support.wording import refused

RUN = RunKey("dag", "run")
CLAIMS = [
    Evidence(run=RUN, verdict=Verdict.PASS, full_coverage=True), Evidence(run=RUN, held=True),
    Evidence(run=RUN, nothing_new=True), Evidence(person="Ada", reason="because"),
    Evidence(person="Ada", reason="because", adopted=True), Evidence(person="Ada", reason="because", replaced=True),
    Evidence(verdict=Verdict.PASS, full_coverage=True, replaces="gpu-0007"),
]  # fmt: skip
"""What brings a node into production, from one state or another."""

CHANGES: list[dict[str, object]] = [
    {}, {"run": None}, {"run": RUN}, {"run_over": True}, *({"verdict": each} for each in (None, *Verdict)),
    {"full_coverage": False}, {"full_coverage": True}, {"budget_spent": True}, {"observed": "XID 95"}, {"repair": "1"},
    *({"person": each} for each in (None, "", "airflow", "Muster ", "Ada")), {"reason": ""}, {"reason": "  "},
    *({each: flag} for each in ("adopted", "replaced", "held", "nothing_new") for flag in (True, False)),
    {"replaces": ""}, {"replaces": "gpu-0007"},
]  # fmt: skip
NEAR = [dataclasses.replace(claim, **change) for claim in CLAIMS for change in CHANGES]  # type: ignore[arg-type]
"""Each claim, and what differs from it by one field: where the table lets pass and refuses."""

ENDS = list(itertools.product(State, Verdict, (True, False), range(INCONCLUSIVE_BUDGET)))


def allowed(current: State, to: State, evidence: Evidence, *, shadow: bool = False) -> bool:
    try:
        check_move(current, to, evidence, shadow=shadow)
    except IllegalMove:
        return False
    return True


def by_a_person(evidence: Evidence) -> bool:
    return (evidence.person or "").strip().lower() not in NOT_PERSONS and bool(evidence.reason.strip())


@pytest.mark.parametrize("current", State)
def test_production_needs_a_full_pass_or_a_person(current: State) -> None:
    for evidence in NEAR:
        covered = evidence.verdict is Verdict.PASS and evidence.full_coverage
        passed = evidence.run and covered
        # A held verdict, and a test that was not made, bring no node in: it only goes on serving where it served.
        kept = current is State.REVALIDATION and evidence.run and (evidence.held or evidence.nothing_new)
        spare = current is State.QUALIFIED and evidence.replaces and covered
        if allowed(current, State.PRODUCTION, evidence):
            assert passed or by_a_person(evidence) or kept or spare


def test_each_claim_brings_a_node_into_production_from_somewhere() -> None:
    for claim in CLAIMS:
        assert any(allowed(current, State.PRODUCTION, claim) for current in State)


def test_the_end_of_a_run_is_always_legal_and_leaves_no_node_in_flight() -> None:
    """Whatever verdict meets whatever state, the closing moves are in the table, each with the evidence they need."""
    entered = set()
    for current, verdict, full, inconclusive in ENDS:
        end = closing(current, verdict, full, inconclusive)
        evidence = Evidence(
            run=RUN,
            run_over=verdict in (Verdict.INCONCLUSIVE, Verdict.SKIPPED),
            verdict=verdict,
            full_coverage=full,
            budget_spent=State.TRIAGE in end.path,
        )
        state = current
        for step in end.path:
            check_move(state, step, evidence)
            state = step
        # A cluster's verdict is admission's to act on.
        assert state not in IN_FLIGHT - {State.CLUSTER_VALIDATION}
        assert 0 <= end.inconclusive < INCONCLUSIVE_BUDGET
        if state is State.PRODUCTION and current is not State.PRODUCTION:
            entered.add((current, verdict, full))
    assert entered == {(State.REVALIDATION, Verdict.PASS, True)}


def test_a_verdict_that_is_held_withdraws_no_node_and_admits_none() -> None:
    withdrawn = set()
    for current, verdict, full, inconclusive in ENDS:
        end = closing(current, verdict, full, inconclusive)
        serves_then = (current, *end.path)[-1] is State.PRODUCTION
        assert end.withdraws(current) == (current in SERVING and not serves_then)
        if not end.withdraws(current):
            continue
        withdrawn.add(current)
        held = end.hold(current, "the breaker is open")
        state = current
        for step in held.path:
            check_move(state, step, Evidence(run=RUN, verdict=verdict, held=True))
            state = step
        assert state is State.PRODUCTION
        assert held.why_held == "the breaker is open"
        assert not held.withdraws(current)
    assert withdrawn == SERVING


@pytest.mark.parametrize("current", State)
def test_only_a_person_moves_a_node_in_shadow_mode(current: State) -> None:
    for to, evidence in itertools.product(State, NEAR):
        open_way = allowed(current, to, evidence)
        assert allowed(current, to, evidence, shadow=True) == (open_way and by_a_person(evidence))


@pytest.mark.parametrize("stage", STAGES + CLUSTER_STAGES)
def test_no_run_moves_a_node_in_shadow_mode_and_only_a_full_pass_ends_it(stage: str) -> None:
    assert path_to_stage(stage, State.PRODUCTION, frozenset(), shadow=True) == ()
    for current, verdict, full, inconclusive in ENDS:
        end = closing(current, verdict, full, inconclusive, shadow=True)
        assert end.path == ()
        assert end.verified == (verdict is Verdict.PASS and full)


def test_only_a_registered_node_is_adopted_and_only_by_a_person() -> None:
    adopted = Evidence(person="Ada", reason="it serves since spring", adopted=True)
    check_move(State.REGISTERED, State.PRODUCTION, adopted)
    for claimed in (
        Evidence(person="Ada", reason="because"),
        Evidence(person="muster", reason="because", adopted=True),
        Evidence(person="Ada", reason=" ", adopted=True),
        Evidence(run=RUN, verdict=Verdict.PASS, full_coverage=True),
    ):
        with illegal(Refusal.EVIDENCE):
            check_move(State.REGISTERED, State.PRODUCTION, claimed)
    for state in set(State) - {State.REGISTERED, State.QUALIFIED, State.CLUSTER_VALIDATION, *SERVING}:
        with illegal(Refusal.NO_SUCH_MOVE):
            check_move(state, State.PRODUCTION, adopted)


def test_another_machine_begins_anew_from_everywhere() -> None:
    replaced = Evidence(person="Ada", reason="new board", replaced=True)
    for state in set(State) - {State.REGISTERED}:
        check_move(state, State.REGISTERED, replaced)
    for state in (State.QUARANTINE, State.TRIAGE):
        with illegal(Refusal.EVIDENCE):
            check_move(state, State.REGISTERED, Evidence(person="Ada", reason="new board"))


def test_the_story_runs_through_the_table() -> None:
    run = Evidence(run=RUN)
    state = State.REGISTERED
    for stage in STAGES:
        for step in path_to_stage(stage, state, frozenset()):
            check_move(state, step, run)
            state = step
    assert state is State.VALIDATION
    passed = Evidence(run=RUN, verdict=Verdict.PASS, full_coverage=True)
    assert closing(state, Verdict.PASS, True, 2).path == (State.QUALIFIED,)
    check_move(State.VALIDATION, State.QUALIFIED, passed)
    with illegal(Refusal.EVIDENCE):
        check_move(State.QUALIFIED, State.PRODUCTION, passed)


def test_a_person_s_move_passes_the_states_of_a_repair() -> None:
    s = State
    assert steps(s.QUARANTINE, s.REGISTERED) == (s.TRIAGE, s.REPAIR, s.REGISTERED)
    assert steps(s.TRIAGE, s.REGISTERED) == (s.REPAIR, s.REGISTERED)
    assert steps(s.PRODUCTION, s.RMA) == (s.QUARANTINE, s.TRIAGE, s.RMA)
    assert steps(s.PRODUCTION, s.REGISTERED) == steps(s.RMA, s.REGISTERED) == (s.REGISTERED,)


@pytest.mark.parametrize("current", State)
def test_each_step_of_a_person_s_move_is_one_that_a_person_may_take(current: State) -> None:
    for to in State:
        path = steps(current, to)
        if to not in person_moves(current):
            assert path == (to,)
            continue
        assert path[-1] is to
        assert path == (to,) or State.PRODUCTION not in path
        for origin, target in itertools.pairwise((current, *path)):
            check_move(origin, target, Evidence(person="Ada", reason="because"))


@pytest.mark.parametrize("current", State)
def test_a_refused_person_sees_the_moves_that_are_a_person_s(current: State) -> None:
    for to in (to for to in State if (current, to) not in TRANSITIONS):
        with illegal(Refusal.NO_SUCH_MOVE) as refused:
            check_move(current, to, Evidence(person="Ada", reason="because"))
        assert str(refused.value).rpartition(" to ")[2].split(", ") == person_moves(current)


@pytest.mark.parametrize("state", sorted(IN_FLIGHT))
def test_a_run_that_ends_without_a_verdict_lets_go(state: State) -> None:
    back = State.QUALIFIED if state is State.CLUSTER_VALIDATION else State.REGISTERED
    check_move(state, back, Evidence(run=RUN, run_over=True))
    with illegal(Refusal.EVIDENCE):
        check_move(state, back, Evidence(run=RUN))


def test_a_fail_quarantines_from_anywhere_a_node_may_be_tested() -> None:
    fail = Evidence(run=RUN, verdict=Verdict.FAIL)
    for state in set(State) - {State.QUARANTINE, State.TRIAGE, State.REPAIR, State.RMA, State.RETIRED}:
        check_move(state, State.QUARANTINE, fail)
        assert closing(state, Verdict.FAIL, True, 0).path == (State.QUARANTINE,)


@pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.SKIPPED])
def test_a_revalidation_that_says_nothing_leaves_the_node_waiting_out_of_service(verdict: Verdict) -> None:
    """It is not sent back to the loading dock for trouble that is not its own, and does not serve without a pass."""
    end = closing(State.REVALIDATION, verdict, False, 0)
    assert end.path == ()
    back = closing(State.REVALIDATION, verdict, False, 0, nothing_new=True).path
    assert back == (State.PRODUCTION,)
    for current in SERVING:
        end_at_limit = closing(current, Verdict.INCONCLUSIVE, False, 2, nothing_new=True)
        assert not end_at_limit.withdraws(current)
    assert path_to_stage("intake", State.REVALIDATION, frozenset()) == (), "the next run takes it up where it stands"
    assert closing(State.REVALIDATION, Verdict.PASS, True, end.inconclusive).path == (State.PRODUCTION,)
    assert closing(State.REVALIDATION, Verdict.INCONCLUSIVE, False, 2).path == (State.QUARANTINE, State.TRIAGE)


def test_the_third_inconclusive_run_goes_to_triage() -> None:
    assert closing(State.BURN_IN, Verdict.INCONCLUSIVE, False, 0).path == (State.REGISTERED,)
    assert closing(State.BURN_IN, Verdict.INCONCLUSIVE, False, 1).inconclusive == 2
    assert closing(State.BURN_IN, Verdict.INCONCLUSIVE, False, 2).path == (State.QUARANTINE, State.TRIAGE)


def test_a_node_that_was_moved_away_stays_there() -> None:
    for state in (State.QUARANTINE, State.TRIAGE, State.REPAIR, State.RMA, State.RETIRED):
        assert closing(state, Verdict.PASS, True, 1).path == ()


def test_a_cleared_run_resumes_only_past_stages_that_it_has_done() -> None:
    done = frozenset({"intake", "burn_in"})
    assert path_to_stage("integrity", State.REGISTERED, done) == (State.INTAKE, State.BURN_IN, State.VALIDATION)
    assert path_to_stage("performance", State.REGISTERED, done) == (State.INTAKE, State.BURN_IN, State.VALIDATION)
    assert path_to_stage("integrity", State.REGISTERED, frozenset({"intake"})) == (State.VALIDATION,)
    assert path_to_stage("thermal", State.PRODUCTION, frozenset()) == (State.REVALIDATION,)


def test_wording_of_refusals(snapshot: SnapshotAssertion) -> None:
    """Of every move in the table that nothing supports, and of one that is not in it."""
    moves = [(current, to, Evidence()) for current, to in TRANSITIONS]
    moves.append((State.QUARANTINE, State.PRODUCTION, Evidence(person="Ada", reason="trust me")))
    assert "\n".join(refused(check_move, *move) for move in moves) == snapshot


def test_the_stages_bear_the_names_that_the_programme_and_the_judge_give_them() -> None:
    assert STAGES == STAGES
    assert CLUSTER_STAGES == (cluster_model.STAGE,)


def test_every_state_has_a_way_on_and_only_a_person_brings_a_retired_node_back() -> None:
    assert {origin for origin, _ in TRANSITIONS} == set(State)
    assert {to for origin, to in TRANSITIONS if origin is State.RETIRED} == {State.REGISTERED}
    assert person_moves(State.RETIRED) == [State.REGISTERED]
    with illegal(Refusal.EVIDENCE):
        check_move(State.RETIRED, State.REGISTERED, Evidence(run=RUN, run_over=True))
    assert {to for _, to in TRANSITIONS} == set(State)
