"""Whatever happens in whatever order, the records keep their promises: runs, people, forged claims, lost leases."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from muster import store
from muster.errors import MusterError
from muster.model.events import Event, Evidence
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import IN_FLIGHT, State
from muster.rules.lifecycle.gate import Refuse
from muster_criteria.model import Coverage, Verdict
from tests.muster import fleet
from tests.support.examples import guarded, reached

MEMORY = Path("/dev/shm")
"""Thousands of transactions: on a disk most of the test's time would be waiting for it."""

NODE = "gpu-0001"
RUNS = ("one", "two")
NOBODIES = ("muster", "airflow", "", "system")
STATES = st.sampled_from(State)
RUN = st.sampled_from(RUNS)
VERDICTS = st.sampled_from([Verdict.PASS, Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.INCONCLUSIVE])


class Story(RuleBasedStateMachine):
    """One node, two runs, and everybody doing whatever comes to mind. It keeps its own books of what was proved."""

    template: Path

    @initialize(full=st.sampled_from([True, False, None]))
    def enrol(self, full: bool | None) -> None:
        """A new node, or one whose first run went as far as it gets, with ``full`` coverage or not quite."""
        self.shadow = False
        self.events: list[Event] = []
        self.folder = Path(tempfile.mkdtemp(prefix="muster-story-", dir=MEMORY if MEMORY.is_dir() else None))
        shutil.copy(self.template, self.folder / "muster.db")
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("MUSTER_HOME", str(self.folder))
        self.patch.delenv("MUSTER_DATABASE_URL", raising=False)
        self.patch.setenv("MUSTER_ADMISSION_LEVEL", "short")
        store.nodes.add(fleet.new_node(NODE))
        self.passed: dict[str, set[str]] = {run: set() for run in RUNS}
        self.verdicts: dict[str, Verdict | None] = dict.fromkeys(RUNS)
        self.entered_by: str | None = None
        self.person_put_it: State | None = None
        self.token = self.machines = 0
        if full is not None:
            self.to_production_the_straight_way("one", Verdict.PASS, full)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            store.engine.dispose()
            self.patch.undo()
            shutil.rmtree(self.folder)

    @rule(
        run=RUN, stages=st.sampled_from([5, 5, 5, 3, 1]), last=VERDICTS, full=st.booleans(),
        ends=st.sampled_from([*Verdict, Verdict.PASS, None]), let_go=st.booleans(),
    )  # fmt: skip
    def run_as_the_dag_does(
        self, run: str, stages: int, last: Verdict, full: bool, ends: Verdict | None, let_go: bool
    ) -> None:
        """Some stages in order, of which the last may not go well; an end that they may not bear out, or none."""
        try:
            store.runs.begin(RunKey(fleet.DAG, run), NODE, "short", "because")
            lease = store.leases.acquire(NODE, RunKey(fleet.DAG, run))
        except MusterError:
            return
        assert lease.token >= self.token
        self.token = lease.token
        for stage in STAGES[:stages]:
            is_last = stage == STAGES[stages - 1]
            self.any_stage(run, stage, last if is_last else Verdict.PASS, full or not is_last)
        if ends is not None:
            self.finish(run, ends)
        if let_go:
            self.release(run)

    @rule(run=RUN, stage=st.sampled_from(STAGES), verdict=VERDICTS, full=st.booleans())
    def any_stage(self, run: str, stage: str, verdict: Verdict, full: bool) -> None:
        """A Clear of any task, at any time."""
        covered = Coverage(2, 2, 2) if full else Coverage(2, 1, 1)
        try:
            store.runs.begin_stage(RunKey(fleet.DAG, run), stage)
            self.verdicts[run] = None
            fleet.record(RunKey(fleet.DAG, run), None, fleet.judgement(stage, verdict, coverage=covered))
        except MusterError:
            return
        (self.passed[run].add if verdict is Verdict.PASS and full else self.passed[run].discard)(stage)

    @rule(run=RUN, verdict=st.sampled_from(Verdict))
    def finish(self, run: str, verdict: Verdict) -> None:
        """With any verdict whatever, even one that the stages do not bear out."""
        before = store.nodes.get(NODE).state
        try:
            store.runs.finish(RunKey(fleet.DAG, run), verdict, "by claim")
        except MusterError:
            return
        self.verdicts[run] = verdict
        self.note_entry(before, run=run)
        if self.shadow and not store.nodes.get(NODE).shadow:
            assert verdict is Verdict.PASS
            assert self.passed[run] == set(STAGES)
            self.shadow = False

    @rule(run=RUN)
    def release(self, run: str) -> None:
        before = store.nodes.get(NODE).state
        store.leases.release(RunKey(fleet.DAG, run), "over")
        self.note_entry(before)

    @rule(
        to=st.sampled_from([state for state in State if state is not State.RETIRED]),
        person=st.sampled_from(["Ada", *NOBODIES]),
        reason=st.sampled_from(["", " ", "because"]),
    )
    def person_moves(self, to: State, person: str, reason: str) -> None:
        before, decision = store.nodes.get(NODE).state, store.admission.decision(NODE)
        try:
            store.nodes.move(NODE, to, person, reason)
        except MusterError:
            return
        assert to is not State.PRODUCTION or not isinstance(decision, Refuse)
        assert person == "Ada"
        assert reason.strip()
        self.person_put_it = to
        self.shadow = False
        self.note_entry(before, person=True)

    @rule(
        to=STATES, run=st.sampled_from(["one", "two", "three"]), run_over=st.booleans(),
        verdict=st.sampled_from([None, *Verdict]), full=st.booleans(), budget=st.booleans(),
    )  # fmt: skip
    def program_claims(
        self, to: State, run: str, run_over: bool, verdict: Verdict | None, full: bool, budget: bool
    ) -> None:
        """A program asks for a move and claims whatever it likes."""
        before = store.nodes.get(NODE).state
        claimed = Evidence(RunKey(fleet.DAG, run), run_over, verdict, full, budget, "muster", "claimed")
        try:
            store.nodes.move(NODE, to, "muster", "claimed", claimed)
        except MusterError:
            return
        self.note_entry(before, run=run)

    @rule(person=st.sampled_from(["Ada", *NOBODIES]), reason=st.sampled_from(["", "because"]))
    def adopt(self, person: str, reason: str) -> None:
        before = store.nodes.get(NODE).state
        try:
            adopted = store.adoption.adopt([NODE], person, reason)[NODE] == "adopted"
        except MusterError:
            return
        if adopted:
            assert person == "Ada"
            assert reason
            self.shadow = True
            self.note_entry(before, person=True)

    @rule(person=st.sampled_from(["Ada", *NOBODIES]))
    def verify(self, person: str) -> None:
        try:
            verified = store.adoption.verify(NODE, person, "I saw it") == "verified"
        except MusterError:
            refused = isinstance(store.admission.decision(NODE), Refuse)
            assert person != "Ada" or refused or store.leases.get(NODE)
            return
        assert person == "Ada"
        if verified:
            self.shadow = False

    @rule(person=st.sampled_from(["Ada", *NOBODIES]))
    def replace(self, person: str) -> None:
        """Another machine: nothing that was proved of the one before counts for it."""
        self.machines += 1
        try:
            store.adoption.replace(NODE, person, "new board", host_key=fleet.host_key(f"machine {self.machines}"))
        except MusterError:
            return
        assert person == "Ada"
        assert store.verdicts.latest(NODE) == []
        assert store.nodes.get(NODE).state is State.REGISTERED
        self.shadow, self.person_put_it = False, None

    @rule()
    def repair(self) -> None:
        self.person_moves(State.REGISTERED, "Ada", "new fan")

    @rule(run=RUN, last=VERDICTS, full=st.booleans())
    def to_production_the_straight_way(self, run: str, last: Verdict, full: bool) -> None:
        """By a run, and from wherever one stands, as far as programs can get: hypothesis seldom finds the door else."""
        self.run_as_the_dag_does(run, len(STAGES), last, full, Verdict.PASS, False)
        for to in (State.CLUSTER_VALIDATION, State.PRODUCTION, State.REVALIDATION, State.PRODUCTION):
            for claimed in RUNS:
                self.program_claims(to, claimed, False, Verdict.PASS, True, False)

    def note_entry(self, before: State, run: str = "", person: bool = False) -> None:
        after = store.nodes.get(NODE).state
        if after is not State.PRODUCTION or before is State.PRODUCTION:
            return
        proved = run in RUNS and self.verdicts[run] is Verdict.PASS and self.passed[run] == set(STAGES)
        untested = run in RUNS and self.verdicts[run] in (Verdict.INCONCLUSIVE, Verdict.SKIPPED)
        if untested and before is State.REVALIDATION and not person:
            # It goes on serving: its last way into production stands.
            assert store.runs.get(RunKey(fleet.DAG, run)).state_before is State.PRODUCTION
            return
        assert person or proved, f"{before} → production on run {run!r}"
        self.entered_by = "person" if person else run
        if not person:
            reached("entered by a run")

    @invariant()
    def the_books_agree(self) -> None:
        """Each event begins where the last one ended; the node stands where they lead, and nowhere without cause."""
        if not hasattr(self, "folder"):
            return
        state, events = store.nodes.get(NODE).state, store.nodes.events(NODE)
        assert events[: len(self.events)] == self.events, "history only grows"
        self.events = events
        assert all(earlier.to_state == later.from_state for earlier, later in itertools.pairwise(events))
        assert state is events[-1].to_state
        if state is State.PRODUCTION:
            assert self.entered_by
        assert store.nodes.get(NODE).shadow == self.shadow
        assert not self.shadow or state is State.PRODUCTION
        if state in IN_FLIGHT and state is not self.person_put_it:
            assert store.leases.get(NODE) is not None


@guarded("entered by a run")
@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
@pytest.mark.parametrize("stories", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_no_sequence_of_events_reaches_production_without_a_full_pass_or_a_person(
    sqlite_template: Path, stories: int
) -> None:
    Story.template = sqlite_template
    run_state_machine_as_test(
        Story,
        settings=settings(
            max_examples=stories,
            stateful_step_count=15,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.reuse, Phase.generate],
        ),
    )
