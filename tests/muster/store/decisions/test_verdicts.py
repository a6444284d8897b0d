"""What stands of a node's tests, what people approved, when it last passed; blocks of nodes; enrolments that race."""

from __future__ import annotations

import datetime
import functools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from muster import store
from muster.errors import DifferentMachine, NodeLeased, NoPerson, UnknownNode, UnknownRun
from muster.model.dags import CLUSTER_QUALIFICATION
from muster.model.runs import Job, RunKey, StageVerdict
from muster.model.stages import CLUSTER_STAGES, STAGES
from muster.model.states import State
from muster.rules.lifecycle.current import INCONCLUSIVE, current_of, thoroughness
from muster.store.database.engine import writing
from muster_criteria.model import Verdict
from muster_criteria.stages import LEVELS
from tests.muster import fleet

NODE = "gpu-0001"
BLOCK = ("gpu-0001", "gpu-0002", "gpu-0003")

RECORDED = st.builds(
    StageVerdict,
    stage=st.sampled_from(["integrity", "thermal"]),
    level=st.sampled_from(LEVELS),
    verdict=st.sampled_from(Verdict),
    full_coverage=st.booleans(),
    reason=st.just(""),
    recorded_at=st.datetimes(),
    dag_id=st.just("dag"),
    run_id=st.just("run"),
)


@given(st.lists(RECORDED, max_size=8, unique_by=lambda verdicts: verdicts.recorded_at))
def test_a_fail_stands_until_something_as_thorough_says_otherwise(verdicts: list[StageVerdict]) -> None:
    """In the order in which they were recorded, whatever the clocks say."""
    stands = current_of(verdicts)
    assert set(stands) <= set(verdicts)
    for place, each in enumerate(verdicts):
        ended = any(
            later.stage == each.stage
            and later.verdict not in INCONCLUSIVE
            and thoroughness(later.level) >= thoroughness(each.level)
            for later in verdicts[place + 1 :]
        )
        assert (each in stands) == (not ended)
    for stage in {each.stage for each in verdicts}:
        assert [each for each in verdicts if each.stage == stage][-1] in stands


def stage(run_id: str, verdict: Verdict, *, level: str = "short", **verdicts: object) -> None:
    store.runs.begin(RunKey(fleet.DAG, run_id), NODE, level, "because")
    lease = store.leases.acquire(NODE, RunKey(fleet.DAG, run_id))
    store.runs.begin_stage(RunKey(fleet.DAG, run_id), "intake")
    fleet.record(RunKey(fleet.DAG, run_id), None, fleet.judgement("intake", verdict, **verdicts))
    store.leases.release(RunKey(fleet.DAG, run_id), "over")
    assert lease.node == NODE


@pytest.mark.usefixtures("fleet_db")
class TestStanding:
    def test_a_finding_is_open_until_it_is_looked_at_again(self) -> None:
        store.nodes.add(fleet.new_node())
        assert store.verdicts.latest(NODE) == []
        stage("one", Verdict.FAIL, findings=(fleet.FINDING,))
        stage("two", Verdict.INCONCLUSIVE)
        assert [each.verdict for each in store.verdicts.latest(NODE)] == [Verdict.FAIL, Verdict.INCONCLUSIVE]
        assert [(each.run_id, each.finding.device) for each in store.verdicts.open_findings(NODE)] == [("one", "gpu3")]
        stage("three", Verdict.PASS)
        assert [(each.run_id, each.full_coverage) for each in store.verdicts.latest(NODE)] == [("three", True)]
        assert store.verdicts.open_findings(NODE) == []
        with pytest.raises(UnknownNode):
            store.verdicts.open_findings("absent")

    def test_the_last_pass_of_each_machine(self) -> None:
        for name in BLOCK:
            store.nodes.add(fleet.new_node(name))
        fleet.qualify(NODE)
        fleet.qualify("gpu-0002")
        fleet.fail("gpu-0003")
        block = fleet.begin(NODE, "block", required_stages=CLUSTER_STAGES)
        fleet.do_stage(block, *CLUSTER_STAGES)
        assert set(store.verdicts.stage_tests()) == {NODE, "gpu-0002"}
        assert set(store.verdicts.stage_tests()[NODE]) == set(STAGES)
        store.adoption.replace("gpu-0002", "Ada", "new", host_key=fleet.host_key("new"))
        assert set(store.verdicts.stage_tests()) == {NODE}

    def test_a_duration_is_typical_of_runs_of_one_kind_and_without_the_wait_for_a_slot(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.nodes.add(fleet.new_node())
        lease, now = fleet.begin(), store.clock.now()
        began, ended = now + datetime.timedelta(days=9), now + datetime.timedelta(days=9, hours=7)
        for attempt, at in enumerate((began, ended)):
            store.runs.record_job(Job(fleet.DAG, lease.run_id, "intake", str(attempt), "done", "/j", started_at=at))
        monkeypatch.setattr(store.clock, "now", lambda: ended)
        fleet.do_stage(lease, "intake")
        store.runs.finish(lease.key, Verdict.PASS, "All is well.")
        usual = functools.partial(store.runs.typical_duration_s, "cpu-generic")
        assert usual("short", fleet.DAG, simulated=False) == 7 * 3600
        assert store.reporting.run(lease.key).started_at == began
        assert usual("long", fleet.DAG, simulated=False) is None
        assert usual("short", "node_revalidation", simulated=False) is None
        assert usual("short", fleet.DAG, simulated=True) is None
        assert usual("short", fleet.DAG, simulated=False, stages=["intake"]) is None

    def test_a_block_has_a_usual_duration_too(self) -> None:
        store.nodes.add(fleet.new_node())
        fleet.qualify(NODE)
        block = fleet.begin(NODE, "block", dag_id=CLUSTER_QUALIFICATION, required_stages=CLUSTER_STAGES)
        began = store.clock.now()
        stage = CLUSTER_STAGES[0]
        store.runs.record_job(Job(block.dag_id, block.run_id, stage, "0", "done", "/j", started_at=began))
        fleet.do_stage(block, *CLUSTER_STAGES)
        store.runs.finish(block.key, Verdict.PASS, "All is well.")
        assert store.runs.typical_duration_s("cpu-generic", "short", CLUSTER_QUALIFICATION, simulated=False) is not None

    def test_an_approval_is_a_persons_and_cannot_be_rewritten(self) -> None:
        store.nodes.add(fleet.new_node())
        link = "http://airflow/dags/x"
        run = RunKey("dag", "run")
        verdicts = store.verdicts.record_approval(NODE, "Ada", "admit", "good enough", link=link, run=run)
        assert (verdicts.person, verdicts.option, verdicts.reason, verdicts.link, verdicts.run) == (
            "Ada", "admit", "good enough", link, "dag/run",
        )  # fmt: skip
        assert store.verdicts.approvals(NODE) == [verdicts]
        assert store.nodes.get(NODE).state is State.REGISTERED
        for person, reason in (("airflow", "why not"), ("Ada", " ")):
            with pytest.raises(NoPerson):
                store.verdicts.record_approval(NODE, person, "admit", reason)
        with pytest.raises(DBAPIError), writing() as session:
            session.execute(text("DELETE FROM events"))


@pytest.mark.usefixtures("fleet_db")
class TestBlocks:
    @pytest.fixture(autouse=True)
    def block(self, fleet_db: str) -> None:
        for name in BLOCK:
            store.nodes.add(fleet.new_node(name))

    def test_all_of_a_block_or_none(self) -> None:
        leases = store.leases.acquire_all(BLOCK, RunKey("cluster", "one"))
        assert [lease.node for lease in leases] == list(BLOCK)
        assert store.leases.acquire_all(reversed(BLOCK), RunKey("cluster", "one")) == leases
        with pytest.raises(NodeLeased):
            store.leases.acquire_all(BLOCK[:2], RunKey("cluster", "two"))
        assert store.leases.release(RunKey("cluster", "one"), "over") == list(BLOCK)
        store.leases.acquire("gpu-0002", RunKey("dag", "three"))
        with pytest.raises(NodeLeased):
            store.leases.acquire_all(BLOCK, RunKey("cluster", "two"))
        with pytest.raises(UnknownNode):
            store.leases.acquire_all(["gpu-0001", "absent"], RunKey("cluster", "two"))
        assert [lease.node for lease in store.leases.live()] == ["gpu-0002"]

    @pytest.mark.both_dialects
    def test_blocks_that_race_for_shared_nodes(self) -> None:
        """In opposite orders, many times: one gets all, the other nothing, and neither waits for ever."""
        outcomes: list[tuple[str, ...]] = []
        barrier = threading.Barrier(2)

        def race(run: str, nodes: list[str]) -> None:
            for turn in range(10):
                barrier.wait()
                try:
                    leases = store.leases.acquire_all(nodes, RunKey("cluster", f"{run}-{turn}"))
                    outcomes.append(tuple(lease.node for lease in leases))
                except NodeLeased:
                    outcomes.append(())
                barrier.wait()
                store.leases.release(RunKey("cluster", f"{run}-{turn}"), "over")

        threads = [
            threading.Thread(target=race, args=("one", list(BLOCK))),
            threading.Thread(target=race, args=("two", list(reversed(BLOCK)))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(outcomes) == [()] * 10 + [BLOCK] * 10

    def test_a_run_of_a_block_has_a_record_for_each_of_its_nodes(self) -> None:
        for name in BLOCK[:2]:
            fleet.qualify(name)
        store.leases.acquire_all(BLOCK[:2], RunKey("cluster", "run"))
        for name in BLOCK[:2]:
            store.runs.begin(RunKey("cluster", "run"), name, "short", "block 7", required_stages=CLUSTER_STAGES)
            lease = store.leases.get(name)
            assert lease is not None
            fleet.do_stage(lease, *CLUSTER_STAGES, Verdict.FAIL if name == NODE else Verdict.PASS)
            assert store.nodes.get(name).state is State.CLUSTER_VALIDATION
        with pytest.raises(UnknownRun):
            store.runs.get(RunKey("cluster", "run"))
        assert (
            store.runs.finish(RunKey("cluster", "run"), Verdict.FAIL, "slow", node=NODE).state_after is State.QUARANTINE
        )
        closed = store.runs.finish(RunKey("cluster", "run"), Verdict.PASS, "well", node="gpu-0002")
        assert closed.state_after is State.CLUSTER_VALIDATION
        assert store.reporting.run(RunKey("cluster", "run"), node="gpu-0002").verdict is Verdict.PASS
        assert store.runs.by_id("run", node=NODE).verdict is Verdict.FAIL
        assert store.leases.release(RunKey("cluster", "run"), "over") == list(BLOCK[:2])
        assert store.nodes.get("gpu-0002").state is State.QUALIFIED
        assert [each.stage for each in store.verdicts.latest("gpu-0002")] == [*STAGES, *CLUSTER_STAGES]

    def test_a_block_that_ends_without_a_word_is_closed_for_each(self) -> None:
        store.leases.acquire_all(BLOCK, RunKey("cluster", "run"))
        for name in BLOCK:
            store.runs.begin(RunKey("cluster", "run"), name, "short", "block 7", required_stages=CLUSTER_STAGES)
        store.leases.release(RunKey("cluster", "run"), "killed")
        assert {run.verdict for run in store.runs.find()} == {Verdict.INCONCLUSIVE}


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.parametrize("same_key", [True, False])
@pytest.mark.both_dialects
def test_enrolments_that_race_for_one_name(same_key: bool) -> None:
    """All see the name free: one adds it, the others find it there, as the same machine or as a different one."""
    for turn in range(5):
        outcomes: list[str] = []
        barrier = threading.Barrier(4)

        def race(
            number: int, name: str = f"n{turn}", seen: list[str] = outcomes, go: threading.Barrier = barrier
        ) -> None:
            key = fleet.host_key(name if same_key else f"{name}-{number}")
            go.wait()
            try:
                seen.append(store.nodes.add(fleet.new_node(name, host_key=key)))
            except DifferentMachine:
                seen.append("different")

        threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(outcomes) == sorted(["added", *["unchanged" if same_key else "different"] * 3])


@pytest.mark.usefixtures("sqlite_db")
def test_a_stage_of_a_test_that_was_preempted_is_as_due_as_before() -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    before = store.verdicts.stage_tests()
    lease = fleet.begin(run_id="preempted")
    fleet.do_stage(lease, "intake")
    assert store.verdicts.stage_tests() != before, "while it runs, nobody knows how it ends"
    store.runs.finish(lease.key, Verdict.SKIPPED, "its scheduler took it back")
    assert store.verdicts.stage_tests() == before
