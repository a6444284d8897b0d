"""One node's life on a scheduler that others change: whatever happens, admission and drains stay as the records say."""

from __future__ import annotations

import contextlib
import datetime
import itertools
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from muster import store
from muster.admission import service
from muster.admission.entry import admit, move
from muster.errors import IllegalMove, MusterError
from muster.model.runs import RunKey
from muster.model.states import BROKEN, SERVING, State
from muster.operators.lifecycle import revalidation
from muster.operators.testing import qualification
from muster.rules.lifecycle.certificate import why_invalid
from muster.store.queues import schedulers
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.admission.listed import DAG, Jobs, line, placed
from tests.support.examples import times
from tests.support.node_list import NodeList

pytestmark = pytest.mark.usefixtures("fleet_db")


class Life(RuleBasedStateMachine):
    """One node through tests, decisions and trouble, on a scheduler that others change and that goes away."""

    numbers = itertools.count(1)
    list_of_nodes: Path

    def __init__(self) -> None:
        super().__init__()
        number = next(self.numbers)
        self.node, self.there = f"gpu-{number:04}", f"r{number}"
        self.up, self.foreign, self.was_open, self.run, self.runs = True, False, True, "", 0
        self.tested = self.served = self.corrupts = self.ended_a_job = False
        self.jobs = Jobs()
        self.away = self.list_of_nodes.with_suffix(".away")
        self.list_of_nodes.write_text(f"{self.there}\n")
        placed(self.node, self.there)

    @initialize(serves=st.booleans(), by_job=st.booleans(), ends=st.booleans())
    def begins(self, serves: bool, by_job: bool, ends: bool) -> None:
        NodeList.tests = self.jobs if by_job else None
        NodeList.end_jobs = self.end_jobs if ends else None
        if serves:
            fleet.qualify(self.node, self.again())
            self.decision_of_a_person()
            service.reconcile()

    def end_jobs(self, _name: str) -> list[str]:
        self.ended_a_job = True
        return ["4711 (train) of alice"]

    @property
    def here(self) -> Path:
        return self.list_of_nodes if self.up else self.away

    @property
    def state(self) -> State:
        return store.nodes.get(self.node).state

    def again(self) -> str:
        self.runs += 1
        return f"{self.node}-{self.runs}"

    @precondition(lambda self: self.state is State.REGISTERED)
    @rule(passes=st.booleans())
    def qualification(self, passes: bool) -> None:
        (fleet.qualify if passes else fleet.fail)(self.node, self.again())

    @precondition(lambda self: self.state is State.QUALIFIED)
    @rule()
    def decision_of_a_person(self) -> None:
        with contextlib.suppress(IllegalMove):  # while a finding is open, the gate refuses the node
            move(self.node, State.PRODUCTION, "Ada", "needed now")

    @precondition(lambda self: not self.run and self.state is State.QUALIFIED)
    @rule()
    def gate(self) -> None:
        run = self.again()
        store.leases.acquire(self.node, RunKey("admission", run))
        with contextlib.suppress(MusterError):
            admit(self.node, RunKey("admission", run))
        store.leases.release(RunKey("admission", run), "over")

    @precondition(lambda self: not self.run and self.state in SERVING)
    @rule()
    def test_begins(self) -> None:
        self.run, self.tested, self.served = self.again(), False, self.state is State.PRODUCTION
        store.leases.acquire(self.node, RunKey(DAG, self.run))
        try:
            service.take_for_test(self.node, f"{DAG} {self.run}", "revalidation", 3600.0)
            store.runs.begin(RunKey(DAG, self.run), self.node, "short", "idle")
        except MusterError:
            self.test_ends(killed=False)

    @precondition(lambda self: self.run and not self.tested)
    @rule(found=st.sampled_from(["nothing", "no result", "a trace", "a fault", "corruption"]))
    def stage(self, found: str) -> None:
        lease = store.leases.get(self.node)
        assert lease
        verdict = {"nothing": Verdict.PASS, "a fault": Verdict.FAIL, "corruption": Verdict.FAIL}
        finding = fleet.finding(metric="gemm_mismatches" if found == "corruption" else "gemm_rate")
        findings = () if found in ("nothing", "no result") else (finding,)
        fleet.do_stage(lease, "intake", verdict.get(found, Verdict.INCONCLUSIVE), findings=findings)
        self.tested, self.corrupts = True, self.corrupts or found == "corruption"

    @precondition(lambda self: self.jobs.running)
    @rule()
    def job_of_a_user_preempts_the_test(self) -> None:
        self.jobs.running.clear()

    @precondition(lambda self: self.run)
    @rule(killed=st.booleans())
    def test_ends(self, killed: bool) -> None:
        """``killed``: with its controller; its lease is freed once Airflow shows that the run is gone."""
        if not killed:
            with contextlib.suppress(AirflowFailException, AirflowSkipException):
                revalidation.conclude(RunKey(DAG, self.run))
            qualification.release(RunKey(DAG, self.run))
        store.leases.release(RunKey(DAG, self.run), "gone")
        self.run = ""

    @precondition(lambda self: self.state in (State.PRODUCTION, State.QUALIFIED) and not self.run)
    @rule()
    def quarantine(self) -> None:
        move(self.node, State.QUARANTINE, "Ada", "noise")

    @precondition(lambda self: not self.run and self.state in (State.QUARANTINE, State.TRIAGE))
    @rule()
    def repair(self) -> None:
        way = [State.QUARANTINE, State.TRIAGE, State.REPAIR, State.REGISTERED]
        for state in way[way.index(self.state) + 1 :]:
            move(self.node, state, "Ada", "repaired")

    @rule()
    def scheduler_goes_or_comes(self) -> None:
        self.here.rename(self.away if self.up else self.list_of_nodes)
        self.up, self.jobs.down = not self.up, self.up

    @rule(foreign=st.booleans())
    def another_closes_or_opens(self, foreign: bool) -> None:
        self.foreign, self.was_open = foreign, not foreign
        self.here.write_text(f"{self.there} # alice: fan\n" if foreign else f"{self.there}\n")

    @rule()
    def controller_is_killed_after_its_claim(self) -> None:
        store.schedulers.claim(self.node)

    @rule()
    def housekeeping(self) -> None:
        service.reconcile()

    @property
    def certified(self) -> bool:
        found = store.certificates.newest(self.node)
        now = datetime.datetime.now(datetime.UTC)
        return found is not None and not why_invalid(found.revoked, found.expires_at, now)

    @invariant()
    def production_has_a_valid_certificate(self) -> None:
        assert self.state is not State.PRODUCTION or self.certified

    @invariant()
    def we_open_only_what_serves(self) -> None:
        is_open = line(self.here, self.there) == self.there
        assert self.was_open or not is_open or (self.state is State.PRODUCTION and self.certified)
        self.was_open = is_open

    @invariant()
    def a_test_that_is_a_job_closes_nothing_that_serves(self) -> None:
        if self.jobs.running and self.run and self.served:
            assert line(self.here, self.there).partition(" # ")[2] in ("", "alice: fan")

    @invariant()
    def no_job_of_a_user_is_ended_unless_the_node_corrupts_data(self) -> None:
        assert self.corrupts or not self.ended_a_job

    @invariant()
    def a_foreign_drain_stays(self) -> None:
        assert ("alice" in self.here.read_text()) is self.foreign

    def teardown(self) -> None:
        if not self.up:
            self.scheduler_goes_or_comes()
        if self.run:
            self.test_ends(killed=False)
        for _ in range(2):
            service.reconcile()
        closed = "muster:" in line(self.list_of_nodes, self.there)
        assert not (closed and self.state is State.PRODUCTION), "no node is left drained by us"
        assert not self.jobs.running, "no test job is left"
        assert closed or self.foreign or self.state not in BROKEN
        self.leave()

    def leave(self) -> None:
        """The node's place goes, so that the next example is alone."""
        if self.state in SERVING:
            move(self.node, State.REGISTERED, "Ada", "over")
        store.schedulers.assign(self.node, "", "", "Ada", "over")


@pytest.mark.many_examples
def test_whatever_happens_no_certificate_no_production_and_no_drain_is_left_or_undone(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedulers, "CLAIM", 0)
    for seam in ("tests", "end_jobs"):
        monkeypatch.setattr(NodeList, seam, None)
    Life.list_of_nodes = nodes
    few = settings(max_examples=times(5), stateful_step_count=25, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Life, settings=few)
