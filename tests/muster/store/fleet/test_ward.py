"""Whatever happens to a node under repair in whatever order, none in service is repaired, and none returns unproved."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from muster import store
from muster.errors import IllegalMove, LeaseLost, MusterError, NodeLeased
from muster.model.names import SPARE_LABEL
from muster.model.repairs import Outcome
from muster.model.stages import CLUSTER_STAGES, STAGES
from muster.model.states import SERVING, State
from muster.rules.lifecycle.gate import Admit
from muster.rules.service.repair import REPAIRABLE
from tests.muster import fleet
from tests.muster.store.fleet.test_repairs import FAULT, KEY, LEVEL, NODE, PROVE, broken, evident
from tests.muster.store.test_story import MEMORY
from tests.support.examples import guarded, reached, times


class Ward(RuleBasedStateMachine):
    """One node, its faults, repairs that end in every way or are lost, tests at every level, and people."""

    template: Path

    @initialize(seen=st.sampled_from([True, False]))
    def begins(self, seen: bool) -> None:
        """After a repair that no test has proved, or after the tests too: the gate has but this to ask about."""
        self.folder = Path(tempfile.mkdtemp(prefix="muster-ward-", dir=MEMORY if MEMORY.is_dir() else None))
        shutil.copy(self.template, self.folder / "muster.db")
        self.patch, self.number = pytest.MonkeyPatch(), 0
        self.patch.setenv("MUSTER_HOME", str(self.folder))
        self.patch.delenv("MUSTER_DATABASE_URL", raising=False)
        self.patch.setenv("MUSTER_ADMISSION_LEVEL", "short")
        broken(labels={SPARE_LABEL: "yes"})
        self.passed: set[str] = set()
        self.repaired()
        self.tested("short", STAGES)
        self.no_return_without_proof()
        if seen:
            self.tested("standard", STAGES)
            self.proved()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            store.engine.dispose()
            self.patch.undo()
            shutil.rmtree(self.folder)

    @rule(leased=st.booleans(), evidence=st.booleans(), rung=st.sampled_from(["reset_gpu", "reboot"]))
    def reserve(self, leased: bool, evidence: bool, rung: str) -> None:
        before = store.nodes.get(NODE).state
        with contextlib.suppress(NodeLeased):
            if leased:
                store.leases.acquire(NODE, KEY)
        known = store.repairs.open_incident(NODE, FAULT, "XID 95", PROVE, LEVEL)
        taken = bool((evident() if evidence else known).bundle)
        try:
            store.repairs.reserve(known.id, rung, KEY)
        except (IllegalMove, LeaseLost, NodeLeased):
            return
        self.passed.clear()
        reached("repaired")
        assert before in REPAIRABLE, "a node that may be in use is not repaired"
        assert taken
        assert (lease := store.leases.get(NODE)) is not None
        assert lease.key == KEY

    @rule(outcome=st.sampled_from([*Outcome]))
    def settle(self, outcome: Outcome) -> None:
        for known in store.repairs.find(NODE):
            for each in store.repairs.history(known):
                if each.ended_at is None:
                    self.passed.clear()
                store.repairs.settle(each.id, outcome, "it ended")

    @rule()
    def lost(self) -> None:
        """The run is over; the next one ends what it left."""
        if store.repairs.settle_lost(NODE):
            self.passed.clear()
        store.leases.release(KEY, "over")

    @rule()
    def repaired(self) -> None:
        """As a run does it."""
        self.reserve(True, True, "reboot")
        self.settle(Outcome.SUCCEEDED)
        self.lost()

    @rule(
        level=st.sampled_from(["short", "standard"]),
        stages=st.sampled_from([*((each,) for each in PROVE), PROVE, STAGES, STAGES]),
    )
    def tested(self, level: str, stages: tuple[str, ...]) -> None:
        """All the stages are followed by those of its block: the gate admits nothing less."""
        for part in (stages, CLUSTER_STAGES if stages == STAGES else ()):
            self.number += 1
            with contextlib.suppress(MusterError):
                fleet.qualify(NODE, f"{NODE}__{self.number}", level=level, stages=part)
                if level != "short":
                    self.passed |= set(part)

    @rule(level=st.sampled_from(["short", "standard"]))
    def failed(self, level: str) -> None:
        """A FAIL of a shorter test stops the node, and takes no longer test's PASS back."""
        self.number += 1
        with contextlib.suppress(MusterError):
            fleet.fail(NODE, f"{NODE}__{self.number}", level=level)
            if level != "short":
                self.passed.discard("intake")

    @rule(to=st.sampled_from([State.QUARANTINE, State.REGISTERED, State.PRODUCTION, State.RMA]))
    def moved(self, to: State) -> None:
        with contextlib.suppress(MusterError):
            store.nodes.move(NODE, to, "Ada", "a person decides")

    @rule()
    def proved(self) -> None:
        if store.repairs.prove(NODE):
            reached("closed")
            assert set(PROVE) <= self.passed, "closed without the tests that see the fault"

    @invariant()
    def no_return_without_proof(self) -> None:
        if not hasattr(self, "folder"):
            return
        still = [each for each in store.repairs.find(NODE, still_open=True) if each.prove]
        if isinstance(store.admission.decision(NODE), Admit):
            reached("admitted")
            assert not still or set(PROVE) <= self.passed, "the gate admits what no test proved"

    @invariant()
    def in_repair_while_an_attempt_is_open(self) -> None:
        if not hasattr(self, "folder"):
            return
        attempts = [one for each in store.repairs.find(NODE) for one in store.repairs.history(each)]
        under_way = {each.id for each in attempts if each.ended_at is None}
        assert len(under_way) <= 1
        assert not under_way or store.nodes.get(NODE).state not in SERVING


@guarded("repaired", "closed", "admitted")
@pytest.mark.many_examples
def test_no_sequence_repairs_a_node_in_service_or_returns_one_unproved(sqlite_template: Path) -> None:
    Ward.template = sqlite_template
    limits = settings(
        max_examples=times(8), stateful_step_count=15, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(Ward, settings=limits)
