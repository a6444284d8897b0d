"""One door into production, whichever way leads there: after every commit the gate does not refuse what serves."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from muster import store
from muster.admission.entry import move
from muster.errors import MusterError, Refusal
from muster.model.events import Evidence
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.rules.lifecycle.certificate import why_invalid
from muster.rules.lifecycle.gate import Refuse
from muster.store.database import access, engine
from muster_criteria.model import Coverage, Finding, Gap, Lack, Severity, Verdict
from tests.muster import fleet
from tests.muster.store.test_story import MEMORY
from tests.support import lives
from tests.support.refusals import illegal

NODE = "gpu-0001"
DAG = "node_revalidation"
LATER = datetime.timedelta(days=30)
DEVICES = ("gpu0", "gpu1")

PROBLEM = {
    Verdict.FAIL: Severity.CRITICAL,
    Verdict.WARN: Severity.WARNING,
}


def outcome(stage: str, verdict: Verdict, level: str, device: str = "gpu0") -> dict[str, object]:
    """A stage's verdict as the judge gives it: a FAIL and a WARN have their finding, an INCONCLUSIVE its gap."""
    found: tuple[Finding, ...] = ()
    if verdict in PROBLEM:
        found = (fleet.finding(severity=PROBLEM[verdict], device=device, metric=f"{stage}_rate"),)
    covered = Coverage(1, 1, 1)
    if verdict is Verdict.INCONCLUSIVE:
        covered = Coverage(2, 1, 1, (Gap(Lack.NO_RESULT, "no answer"),))
    return {"verdict": verdict, "findings": found, "coverage": covered, "level": level}


class Door(RuleBasedStateMachine):
    """One node that serves, tests of every kind and level, and people who decide about it."""

    template: Path

    @initialize(shadow=st.booleans(), tripped=st.booleans())
    def serves(self, shadow: bool, tripped: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="muster-door-", dir=MEMORY if MEMORY.is_dir() else None))
        shutil.copy(self.template, self.folder / "muster.db")
        self.patch, self.number, self.waivers = pytest.MonkeyPatch(), 0, [0]
        self.patch.setenv("MUSTER_HOME", str(self.folder))
        self.patch.delenv("MUSTER_DATABASE_URL", raising=False)
        self.patch.setenv("MUSTER_ADMISSION_LEVEL", "short")
        self.patch.setenv("MUSTER_BREAKER_FLEET", "1" if tripped else "20")
        store.nodes.add(fleet.new_node(NODE))
        if shadow:
            store.adoption.adopt([NODE], "Ada", "it serves")
        else:
            lives.in_production(NODE)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            store.engine.dispose()
            self.patch.undo()
            shutil.rmtree(self.folder)

    @rule(
        level=st.sampled_from(["short", "short", "long"]),
        stages=st.sampled_from([STAGES, STAGES[:1], STAGES[:1], STAGES[2:4]]),
        last=st.sampled_from([*Verdict, Verdict.PASS, Verdict.PASS, Verdict.WARN, Verdict.FAIL]),
        first=st.sampled_from([Verdict.PASS, Verdict.PASS, Verdict.WARN]),
        device=st.sampled_from(DEVICES),
        ends=st.sampled_from(["judged", "judged", "judged", "preempted", "killed"]),
    )
    def is_tested(
        self, level: str, stages: tuple[str, ...], last: Verdict, first: Verdict, device: str, ends: str
    ) -> None:
        self.number += 1
        run = RunKey(DAG, f"{NODE}__{self.number}")
        try:
            store.runs.begin(run, NODE, level, "idle", required_stages=stages)
            store.leases.acquire(NODE, run)
            worst = Verdict.PASS
            for stage in stages:
                verdict = last if stage == stages[-1] else first if stage == stages[0] else Verdict.PASS
                store.runs.begin_stage(run, stage)
                judged = fleet.judgement(stage, **outcome(stage, verdict, level, device))
                verdict = fleet.record(run, None, judged).judgement.verdict
                worst = max(worst, verdict, key=[*WORSE].index)
            if ends == "judged":
                store.runs.finish(run, worst, "it ended")
            elif ends == "preempted" and worst is not Verdict.FAIL:
                store.runs.finish(run, Verdict.SKIPPED, "its scheduler took it back")
        except MusterError:
            pass
        store.leases.release(run, "over")

    @rule(to=st.sampled_from([State.PRODUCTION, State.PRODUCTION, State.QUARANTINE, State.REGISTERED]))
    def a_person_moves_it(self, to: State) -> None:
        with contextlib.suppress(MusterError):  # it may be refused
            store.nodes.move(NODE, to, "Ada", "I saw it")

    @rule()
    def a_person_qualifies_it_anew(self) -> None:
        if store.nodes.get(NODE).state in (State.REGISTERED, State.QUALIFIED):
            self.number += 1
            with contextlib.suppress(MusterError):  # it may be refused
                fleet.qualify(NODE, f"{NODE}__{self.number}")

    @rule()
    def a_person_keeps_it(self) -> None:
        with contextlib.suppress(MusterError):  # it may be refused
            store.withdrawals.keep_in_service(NODE, "Ada", "a bad driver")

    @rule()
    def a_person_verifies_it(self) -> None:
        with contextlib.suppress(MusterError):  # it may be refused
            store.adoption.verify(NODE, "Ada", "I saw it")

    @rule()
    def a_person_waives_all(self) -> None:
        for each in store.verdicts.open_findings(NODE):
            with contextlib.suppress(MusterError):  # it may be refused
                given = store.waivers.give(each.finding.id, datetime.datetime.now(datetime.UTC) + LATER, "Ada", "known")
                self.waivers.append(given.id)

    @rule(which=st.integers(0, 5))
    def a_waiver_is_revoked(self, which: int) -> None:
        with contextlib.suppress(MusterError):  # it may be refused
            store.waivers.revoke(self.waivers[which % len(self.waivers)], "Ada", "not so good")

    @rule(run_over=st.booleans(), verdict=st.sampled_from([None, *Verdict]))
    def a_program_claims(self, run_over: bool, verdict: Verdict | None) -> None:
        with contextlib.suppress(MusterError):  # it may be refused
            claimed = Evidence(
                RunKey(DAG, f"{NODE}__{self.number}"), run_over, verdict, True, held=True, nothing_new=True
            )
            store.nodes.move(NODE, State.PRODUCTION, "muster", "claimed", claimed)

    @invariant()
    def what_serves_is_not_refused(self) -> None:
        if not hasattr(self, "folder"):
            return
        node, decided = store.nodes.get(NODE), store.admission.decision(NODE)
        if node.state is State.PRODUCTION and not node.shadow and not node.held_run:
            assert not isinstance(decided, Refuse), decided
        now = datetime.datetime.now(datetime.UTC)
        if any(not why_invalid(each.revoked, each.expires_at, now) for each in store.certificates.of_node(NODE)):
            critical = [
                each.finding
                for each in store.verdicts.open_findings(NODE)
                if each.finding.severity is Severity.CRITICAL
            ]
            assert all(finding.waived for finding in critical)


WORSE = (Verdict.PASS, Verdict.PROVISIONAL, Verdict.SKIPPED, Verdict.WARN, Verdict.INCONCLUSIVE, Verdict.FAIL)


@pytest.mark.early(15)
@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
@pytest.mark.parametrize("lives_lived", [8, pytest.param(60, marks=[pytest.mark.slow])])
def test_what_serves_is_not_refused_and_what_is_certified_has_no_open_critical_finding(
    sqlite_template: Path, lives_lived: int
) -> None:
    Door.template = sqlite_template
    run_state_machine_as_test(
        Door,
        settings=settings(
            max_examples=lives_lived,
            stateful_step_count=12,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )


class TestTheWaysThatSkippedTheGate:
    @pytest.fixture(autouse=True)
    def _serving(self, sqlite_db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
        store.nodes.add(fleet.new_node(NODE))

    def run(self, run_id: str, stages: tuple[str, ...], verdicts: dict[str, Verdict], end: Verdict, level="short"):
        run = RunKey(DAG, run_id)
        store.runs.begin(run, NODE, level, "idle", required_stages=stages)
        store.leases.acquire(NODE, run)
        for stage in stages:
            store.runs.begin_stage(run, stage)
            judged = fleet.judgement(stage, **outcome(stage, verdicts.get(stage, Verdict.PASS), level))
            fleet.record(run, None, judged)
        closed = store.runs.finish(run, end, "it ended")
        store.leases.release(run, "over")
        return closed

    def test_a_warning_is_not_outlived_by_a_test_of_another_stage(self) -> None:
        lives.in_production(NODE)
        found = {"performance": Verdict.WARN, "thermal": Verdict.INCONCLUSIVE}
        assert self.run("first", STAGES, found, Verdict.INCONCLUSIVE).state_after is State.REVALIDATION
        assert self.run("second", ("intake",), {}, Verdict.PASS).state_after is State.QUALIFIED
        assert store.reporting.run(RunKey(DAG, "second")).why_left
        assert self.run("third", STAGES, {}, Verdict.PASS).state_after is State.QUALIFIED, "a person decides"

    def test_a_fail_of_a_longer_test_keeps_a_node_in_shadow_mode(self) -> None:
        store.adoption.adopt([NODE], "Ada", "it serves")
        self.run("first", STAGES, {"integrity": Verdict.FAIL}, Verdict.FAIL, level="long")
        with illegal(Refusal.GATE):
            store.adoption.verify(NODE, "Ada", "I saw it")
        self.run("second", STAGES, {}, Verdict.PASS)
        assert store.nodes.get(NODE).shadow

    def test_a_held_fail_has_no_certificate_whatever_else_passes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lives.in_production(NODE)
        self.run("before", STAGES, {}, Verdict.PASS)
        assert len(store.certificates.of_node(NODE)) == 2
        monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")
        self.run("first", STAGES, {"integrity": Verdict.FAIL}, Verdict.FAIL)
        held = store.nodes.get(NODE).held_run
        assert held == RunKey(DAG, "first")
        for _ in range(2):
            assert all(certificate.revoked for certificate in store.certificates.of_node(NODE))
            self.run("second", ("intake",), {}, Verdict.PASS)
        assert (store.nodes.get(NODE).state, store.nodes.get(NODE).held_run) == (State.PRODUCTION, held)

    def test_a_warning_before_a_preemption_is_not_forgotten(self) -> None:
        """Who submits jobs chooses the moment."""
        lives.in_production(NODE)
        closed = self.run("first", ("intake", "burn_in"), {"intake": Verdict.WARN}, Verdict.SKIPPED)
        assert closed.state_after is State.REVALIDATION

    @pytest.mark.parametrize("way", ["revoked", "over", "over for long"])
    def test_a_waiver_that_ends_brings_a_person_to_decide(self, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
        until = datetime.datetime.now(datetime.UTC) + LATER
        store.adoption.adopt([NODE], "Ada", "it serves")
        self.run("first", STAGES, {"integrity": Verdict.FAIL}, Verdict.FAIL)
        (known,) = [each for each in store.verdicts.open_findings(NODE) if each.stage == "integrity"]
        waiver = store.waivers.give(known.finding.id, until, "Ada", "known")
        store.adoption.verify(NODE, "Ada", "good enough")
        assert store.certificates.newest(NODE).revoked == ""
        if way == "revoked":
            store.waivers.revoke(waiver.id, "Bob", "it is not")
        else:
            late = until + datetime.timedelta(days=30 if way == "over for long" else 0)
            with monkeypatch.context() as patch:
                patch.setattr(access, "now", lambda: late)
                store.waivers.recheck_expired()
        node = store.nodes.get(NODE)
        assert (node.state, node.held_run) == (State.PRODUCTION, RunKey(DAG, "first"))
        assert store.certificates.newest(NODE).revoked
        again = store.waivers.give(known.finding.id, until + datetime.timedelta(days=90), "Ada", "still known")
        assert store.nodes.get(NODE).held_run is None
        if way == "revoked":  # else the first waiver holds again: only the clock of this test was ahead
            store.waivers.revoke(again.id, "Bob", "it is not")
            assert store.nodes.get(NODE).held_run == RunKey(DAG, "first")
            store.withdrawals.keep_in_service(NODE, "Ada", "it is")
        assert self.run("second", ("intake",), {}, Verdict.PASS).state_after is State.PRODUCTION

    @pytest.mark.parametrize("left", [Verdict.PASS, Verdict.WARN])
    def test_a_waiver_ends_a_hold_where_it_leaves_nothing(self, left: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")
        lives.in_production(NODE)
        self.run("bad", STAGES, {"integrity": Verdict.FAIL, "thermal": left}, Verdict.FAIL)
        assert store.nodes.get(NODE).held_run == RunKey(DAG, "bad")
        (known,) = [each for each in store.verdicts.open_findings(NODE) if each.stage == "integrity"]
        store.waivers.give(known.finding.id, access.now() + LATER, "Ada", "known")
        assert (store.nodes.get(NODE).held_run is None) is (left is Verdict.PASS)
        assert store.nodes.get(NODE).state is State.PRODUCTION

    def test_a_waiver_ends_no_hold_for_another_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lives.in_production(NODE)
        self.run("before", STAGES, {"thermal": Verdict.WARN}, Verdict.WARN)
        move(NODE, State.PRODUCTION, "Ada", "it is warm there")
        monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")
        other = RunKey(DAG, "other")
        store.runs.begin(other, NODE, "short", "idle", required_stages=STAGES)
        store.leases.acquire(NODE, other)
        store.runs.begin_stage(other, "intake")
        refused = fleet.judgement("intake", **outcome("intake", Verdict.INCONCLUSIVE, "short"))
        fleet.verdicts.record(other, refused, store.stages.Sent(refused=True))
        store.runs.finish(other, Verdict.INCONCLUSIVE, "another machine answers")
        store.leases.release(other, "over")
        assert store.nodes.get(NODE).held_run == other
        (known,) = store.verdicts.open_findings(NODE)
        store.waivers.give(known.finding.id, access.now() + LATER, "Ada", "known")
        assert store.nodes.get(NODE).held_run == other

    def test_a_decision_about_one_held_verdict_does_not_release_a_later_one(self) -> None:
        store.adoption.adopt([NODE], "Ada", "it serves")
        self.run("first", STAGES, {"integrity": Verdict.FAIL}, Verdict.FAIL)
        (known,) = [each for each in store.verdicts.open_findings(NODE) if each.stage == "integrity"]
        waiver = store.waivers.give(known.finding.id, access.now() + LATER, "Ada", "known")
        store.adoption.verify(NODE, "Ada", "good enough")
        store.waivers.revoke(waiver.id, "Bob", "it is not")
        with illegal(Refusal.NOTHING_HELD):
            store.withdrawals.keep_in_service(NODE, "Ada", "seen", held=RunKey(DAG, "an earlier one"))
        assert store.nodes.get(NODE).held_run == RunKey(DAG, "first")
        store.withdrawals.keep_in_service(NODE, "Ada", "seen", held=RunKey(DAG, "first"))
        assert store.nodes.get(NODE).held_run is None

    def test_a_way_that_forgets_the_gate_is_undone(self) -> None:
        """Whatever code moves a node: the end of its transaction asks."""
        lives.in_production(NODE)
        store.nodes.move(NODE, State.QUARANTINE, "Ada", "it smokes")
        store.nodes.move(NODE, State.REGISTERED, "Ada", "new fan")
        self.run("first", STAGES[:3], {"integrity": Verdict.FAIL}, Verdict.FAIL, level="long")
        with illegal(Refusal.GATE), engine.writing() as session:
            row = access.node_row(session, NODE, lock=True)
            row.state = str(State.REVALIDATION)
            proof = Evidence(run=RunKey("x", "y"), verdict=Verdict.PASS, full_coverage=True)
            access.move(session, row, State.PRODUCTION, "muster", "a shortcut", proof)
        assert store.nodes.get(NODE).state is State.QUARANTINE
