"""Records that are away for a moment use up no try of a stage; those that stay away are the controller's fault."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from muster import store
from muster.errors import DatabaseNotReady
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import revalidation
from muster.operators.testing import faults, remote_job, stage
from muster.remote import ssh
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
