"""The circuit breaker over real records: past its limit verdicts are held, and only until somebody decides."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from muster import store
from muster.errors import NoPerson, Refusal
from muster.model.runs import Run
from muster.model.stages import STAGES
from muster.model.states import State
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.support.refusals import illegal

pytestmark = pytest.mark.usefixtures("fleet_db", "breaker_of_four")

FAULT = Verdict.FAIL
_runs = itertools.count()


@pytest.fixture
def breaker_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A breaker that a fleet of four nodes has, and that lets two of them go."""
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "4")
    monkeypatch.setenv("MUSTER_BREAKER_SHARE", "0.5")


def serve(*names: str, **changes: object) -> None:
    """Enrolled nodes in production, by a person's word."""
    for name in names:
        store.nodes.add(fleet.new_node(name, **changes))
        store.adoption.adopt([name], "Ada", "it serves")
        store.adoption.verify(name, "Ada", "I saw it")


def retest(name: str, verdict: Verdict = FAULT) -> Run:
    """A revalidation of the node that ends with this verdict."""
    lease = fleet.begin(name, f"{name}__{next(_runs)}")
    for stage in STAGES if verdict is Verdict.PASS else STAGES[:1]:
        fleet.do_stage(lease, stage, verdict, findings=(fleet.FINDING,) if verdict is FAULT else ())
    ended = store.runs.finish(lease.key, verdict, "so it is")
    store.leases.release(lease.key, "over")
    return ended


def state(name: str) -> State:
    return store.nodes.get(name).state


def test_past_the_limit_a_verdict_is_held_and_the_node_goes_on_serving() -> None:
    serve("a", "b", "c", "d")
    assert not retest("a").why_held
    assert retest("b").state_after is State.QUARANTINE
    assert store.withdrawals.breaker().open
    held = retest("c")
    assert (held.verdict, held.state_after) == (Verdict.FAIL, State.PRODUCTION)
    assert held.why_held.startswith("the circuit breaker is open: 2 of 4 nodes were withdrawn")
    node = store.nodes.get("c")
    assert (node.state, node.held_run) == (State.PRODUCTION, held.key)
    last = store.nodes.events("c")[-1]
    assert (last.from_state, last.to_state) == (State.REVALIDATION, State.PRODUCTION)
    assert last.evidence["held"]
    assert store.withdrawals.breaker().withdrawn == ("a", "b"), "a node that is held has not been withdrawn"


def test_a_warning_that_would_take_a_node_out_of_service_is_held() -> None:
    serve("a", "b", "c", "d")
    retest("a"), retest("b")
    assert retest("c", Verdict.WARN).why_held
    assert state("c") is State.PRODUCTION
    assert not retest("d", Verdict.PASS).why_held
    assert state("d") is State.PRODUCTION


def test_first_qualifications_go_to_quarantine_freely_and_do_not_count() -> None:
    serve("a", "b", "c", "d")
    retest("a"), retest("b")
    store.nodes.add(fleet.new_node("new"))
    fleet.fail("new")
    assert state("new") is State.QUARANTINE
    assert store.withdrawals.breaker().withdrawn == ("a", "b")


def test_real_and_simulated_fleets_have_a_breaker_each() -> None:
    serve("a", "b", "c", "d", simulated=True)
    serve("w", "x", "y", "z")
    retest("a"), retest("b")
    assert (store.withdrawals.breaker(simulated=True).open, store.withdrawals.breaker().open) == (True, False)
    assert not retest("w").why_held
    assert retest("c").why_held


def test_a_later_pass_settles_what_was_held() -> None:
    serve("a", "b", "c", "d")
    retest("a"), retest("b"), retest("c")
    assert store.nodes.get("c").held_run
    assert not retest("c", Verdict.PASS).why_held
    assert not store.nodes.get("c").held_run


@pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.SKIPPED])
def test_a_later_test_without_a_verdict_settles_nothing(verdict: Verdict) -> None:
    serve("a", "b", "c", "d")
    retest("a"), retest("b")
    held = retest("c")
    lease = fleet.begin("c", "c__offline")
    store.runs.finish(lease.key, verdict, "the node did not answer")
    store.leases.release(lease.key, "over")
    assert (state("c"), store.nodes.get("c").held_run) == (State.PRODUCTION, held.key)


def test_a_pass_of_other_stages_settles_nothing() -> None:
    serve("a", "b", "c", "d")
    retest("a"), retest("b")
    held = retest("c")
    fleet.qualify("c", "c__others", stages=STAGES[1:])
    assert (state("c"), store.nodes.get("c").held_run) == (State.PRODUCTION, held.key)


def test_a_later_test_withdraws_it_once_the_breaker_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("a", "b", "c", "d")
    retest("a"), retest("b"), retest("c")
    monkeypatch.setenv("MUSTER_BREAKER_SHARE", "0.75")
    retest("c")
    assert (state("c"), store.nodes.get("c").held_run) == (State.QUARANTINE, None)


def test_a_person_withdraws_it_or_keeps_it() -> None:
    serve("a", "b", "c", "d")
    retest("a"), retest("b"), retest("c"), retest("d")
    assert store.nodes.move("c", State.QUARANTINE, "Ada", "I believe it").held_run is None
    assert store.withdrawals.breaker().withdrawn == ("a", "b"), "a person's decision is not the judge's"
    for actor, reason in (("muster", "because"), ("Ada", " ")):
        with pytest.raises(NoPerson):
            store.withdrawals.keep_in_service("d", actor, reason)
    kept = store.withdrawals.keep_in_service("d", "Ada", "a bad driver, not the GPU")
    assert (kept.state, kept.held_run) == (State.PRODUCTION, None)
    assert store.nodes.events("d")[-1].reason == "kept in service: a bad driver, not the GPU"
    with illegal(Refusal.NOTHING_HELD):
        store.withdrawals.keep_in_service("d", "Ada", "again")


@pytest.mark.both_dialects
def test_verdicts_at_once_do_not_slip_past_the_limit() -> None:
    names = ["a", "b", "c", "d", "e", "f"]
    serve(*names)
    with ThreadPoolExecutor(max_workers=len(names)) as runs:
        ended = list(runs.map(retest, names))
    assert sum(not run.why_held for run in ended) == 3
    assert sum(state(name) is State.QUARANTINE for name in names) == 3
