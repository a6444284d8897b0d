"""A run that is over releases its node, and a FAIL that it recorded puts the node into quarantine first."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from muster import store
from muster.integration import listeners
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.operators import upkeep
from muster.operators.testing import qualification
from muster.remote.connection import ssh
from muster.remote.job import attempt as remote
from muster.store.database.models import NodeRow
from muster_criteria.model import Verdict
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("sqlite_db")

NODE = "gpu-0001"
RUN = RunKey(fleet.DAG, f"{NODE}__new")

DOORS: dict[str, Callable[[], object]] = {
    "the task release": lambda: qualification.release(RUN),
    "the listener": lambda: listeners.on_dag_run_failed(
        SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id, conf={}, run_after=None, state="failed"), ""
    ),
    "housekeeping": lambda: upkeep.sweep_leases(lambda _dag_id, _run_ids: 0),
}


@pytest.fixture(params=list(DOORS))
def door(request: pytest.FixtureRequest) -> Callable[[], object]:
    return DOORS[request.param]


def begun(verdict: Verdict) -> None:
    """A run whose task ``conclude`` failed: a verdict of its intake is recorded, and nothing after."""
    store.nodes.add(fleet.new_node(NODE))
    store.leases.acquire(NODE, RUN)
    store.runs.begin(RUN, NODE, "short", "new", required_stages=STAGES)
    store.runs.begin_stage(RUN, "intake")
    result, raw = fleet.result("intake")
    fleet.record(RUN, result, fleet.judgement("intake", verdict), raw)


def test_a_fail_that_was_never_concluded_still_counts(door: Callable[[], object]) -> None:
    begun(Verdict.FAIL)
    door()
    run = store.runs.get(RUN)
    assert (run.verdict, run.state_after) == (Verdict.FAIL, State.QUARANTINE)
    assert store.nodes.get(NODE).state is State.QUARANTINE
    assert store.leases.live() == []


def test_without_a_fail_the_run_ends_inconclusive(door: Callable[[], object]) -> None:
    begun(Verdict.PASS)
    door()
    run = store.runs.get(RUN)
    assert run.verdict is Verdict.INCONCLUSIVE
    assert f"Stage {STAGES[1]} " in run.headline, "the first that has no verdict"
    assert store.nodes.get(NODE).state is State.REGISTERED
    assert store.leases.live() == []


def test_the_headline_of_a_run_without_a_verdict_names_no_stage_that_has_one(door: Callable[[], object]) -> None:
    """As where the task ``conclude`` failed, or a stage was cleared alone."""
    begun(Verdict.PASS)
    for stage in STAGES[1:]:
        store.runs.begin_stage(RUN, stage)
        result, raw = fleet.result(stage)
        fleet.record(RUN, result, fleet.judgement(stage), raw)
    door()
    run = store.runs.get(RUN)
    assert run.verdict is Verdict.INCONCLUSIVE
    assert not any(stage in run.headline for stage in STAGES)


def test_the_stage_is_named_for_a_node_in_revalidation_too(door: Callable[[], object]) -> None:
    begun(Verdict.PASS)
    with store.engine.writing() as session:
        session.get_one(NodeRow, NODE).state = State.REVALIDATION
    door()
    assert f"Stage {STAGES[1]} " in store.runs.get(RUN).headline


def test_housekeeping_reports_once_what_ended_without_its_own_report(
    door: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    begun(Verdict.FAIL)
    door()
    assert upkeep.report_ended(lambda _dag_id, run_ids: len(run_ids)) == []  # its own task may be about to
    assert upkeep.report_ended(lambda _dag_id, _run_ids: 0) == [RUN]
    assert upkeep.report_ended(lambda _dag_id, _run_ids: 0) == []
    assert store.outbox.waiting() == 1


def test_a_report_before_the_run_has_a_verdict_is_not_its_last(door: Callable[[], object]) -> None:
    begun(Verdict.PASS)
    qualification.report(RUN)
    door()
    assert upkeep.report_ended(lambda _dag_id, _run_ids: 0) == [RUN]


def test_a_run_that_never_began_is_released(door: Callable[[], object]) -> None:
    store.nodes.add(fleet.new_node(NODE))
    store.leases.acquire(NODE, RUN)
    door()
    assert store.leases.live() == []


@pytest.mark.parametrize("end", ["the task release", "housekeeping"])
@pytest.mark.parametrize("away", [False, True])
def test_what_a_run_left_on_its_node_is_stopped_before_another_may_take_it(
    end: str, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was deleted, so that no teardown of it ran. A node that cannot be reached is released all the same."""
    begun(Verdict.PASS)
    holders: list[object] = []

    def stop(key: RunKey, _connect: object, *, node: str) -> None:
        holders.append(store.leases.get(node))
        if away:
            raise ssh.Unreachable("no route to it")

    lease = store.leases.get(NODE)
    monkeypatch.setattr(remote, "stop_leftovers", stop)
    DOORS[end]()
    assert holders == [lease]
    assert store.leases.live() == []
