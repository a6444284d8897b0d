"""What is the controller's, such as records that are away and workers that die, uses up no attempt at a node."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.errors import DatabaseNotReady, MusterError
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import revalidation
from muster.operators.testing import faults, remote_job, stage
from muster.remote.connection import ssh
from muster_criteria.model import Verdict
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("sqlite_db")

NODE = "gpu-0001"
RUN = RunKey("node_revalidation", "hourly")
TRY = types.SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id, task_id="intake", try_number=1, max_tries=2)
CONTEXT: Any = {"ti": TRY, "dag_run": types.SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id)}

STEPS: dict[str, Callable[[stage.MusterStageOperator], Any]] = {
    "start": lambda operator: operator.execute(CONTEXT),
    "settle": lambda operator: operator.execute_complete(CONTEXT, {"kind": "done"}),
}


@pytest.fixture(params=list(STEPS))
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A task of a stage on a node that cannot be reached."""
    monkeypatch.setattr(store.patience, "AGAIN_S", 0.0)
    store.nodes.add(fleet.new_node(NODE))
    fleet.qualify()
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "needed now")
    revalidation.claim(RUN, {"node": NODE, "level": "demo", "reason": "x"})

    def unreachable(_node: Any) -> Any:
        raise ssh.Unreachable("no route to it")

    monkeypatch.setattr(remote_job, "log_in", unreachable)
    operator = stage.MusterStageOperator(task_id="intake", stage="intake")
    return lambda: STEPS[request.param](operator)


def away(monkeypatch: pytest.MonkeyPatch, times: float) -> list[None]:
    """The records are away for so many reads of the node's lease; returns what counts them."""
    read, asked = store.leases.get, list[None]()

    def get(name: str) -> Any:
        asked.append(None)
        if len(asked) <= times:
            raise DatabaseNotReady("it restarts")
        return read(name)

    monkeypatch.setattr(store.leases, "get", get)
    return asked


def test_the_task_waits_for_them(step: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = away(monkeypatch, 3)
    with pytest.raises(remote_job.Inconclusive):
        step()
    job = store.runs.get_job(RUN, "intake")
    assert len(asked) > 3
    assert job is not None
    assert job.note == "no route to it", "it went on to the node"
    assert faults.of_run(RUN) == {}


def test_those_that_stay_away_are_the_controllers_fault(
    step: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.patience, "AWAY_S", 0.0)
    away(monkeypatch, float("inf"))
    with pytest.raises(remote_job.Inconclusive):
        step()
    assert set(faults.of_run(RUN)) == {NODE}


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A task of which workers have died four times, and Airflow tries it for the fifth time."""
    monkeypatch.setattr(TRY, "max_tries", remote_job.RETRIES)
    monkeypatch.setattr(TRY, "try_number", 5)
    return TRY


def test_a_worker_that_dies_uses_up_no_attempt_and_the_third_attempt_is_the_last(
    step: Callable[[], Any], tried: types.SimpleNamespace
) -> None:
    for _ in range(remote_job.ATTEMPTS - 1):
        with pytest.raises(remote_job.Inconclusive):
            step()
        tried.try_number += 1
    assert store.runs.stages(RUN) == []
    with pytest.raises(AirflowFailException):
        step()
    (intake,) = store.runs.stages(RUN)
    assert intake.verdict is Verdict.INCONCLUSIVE


def test_airflows_last_try_records_that_there_is_no_verdict(
    step: Callable[[], Any], tried: types.SimpleNamespace
) -> None:
    tried.try_number = tried.max_tries + 1
    with pytest.raises(AirflowFailException):
        step()
    assert [each.verdict for each in store.runs.stages(RUN)] == [Verdict.INCONCLUSIVE]


def test_a_cleared_stage_has_its_attempts_again(step: Callable[[], Any], tried: types.SimpleNamespace) -> None:
    for _ in range(remote_job.ATTEMPTS - 1):
        with pytest.raises(remote_job.Inconclusive):
            step()
    tried.max_tries += 1
    with pytest.raises(remote_job.Inconclusive):
        step()


@pytest.mark.parametrize("why", [remote_job.ControllerFault("its key is refused everywhere"), MusterError("trouble")])
def test_whatever_ends_an_attempt_counts(
    step: Callable[[], Any], tried: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, why: MusterError
) -> None:
    def fail(_node: Any) -> Any:
        raise why

    monkeypatch.setattr(remote_job, "log_in", fail)
    ends = []
    for _ in range(remote_job.ATTEMPTS):
        with pytest.raises((remote_job.Inconclusive, AirflowFailException)) as ended:
            step()
        ends.append(ended.type)
    assert ends == [remote_job.Inconclusive] * (remote_job.ATTEMPTS - 1) + [AirflowFailException]
