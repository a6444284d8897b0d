"""Two DAG runs that want one node: one has it and the other is refused, and no end of a run leaves it leased.

The same of every DAG that holds nodes. ``claim`` is the task that takes the node.
"""

from __future__ import annotations

import dataclasses
import datetime
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import store
from muster.errors import MusterError
from muster.integration import listeners
from muster.model import dags
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators import upkeep
from muster.operators.lifecycle import repair, revalidation
from muster.operators.testing import block, qualification
from tests.muster.fleet import host_key
from tests.support import lives

NAMES = ("n1", "n2")


@dataclasses.dataclass(frozen=True)
class Holder:
    """A DAG: what its runs do first and last, and the node's state before a run, and after one without a verdict.

    ``claim``: also with the ``run_after`` of Airflow's run, where it tests nodes.
    """

    dag_id: str
    claim: Callable[..., Any]
    release: Callable[[str], Any]
    begins: State


def _params(**more: Any) -> dict[str, Any]:
    return {"level": "demo", "reason": "a test", **more}


TESTING = [
    Holder(
        "node_qualification",
        lambda run, *of: qualification.claim(RunKey("node_qualification", run), _params(node="n1"), None, *of),
        lambda run: qualification.release(RunKey("node_qualification", run)),
        State.REGISTERED,
    ),
    Holder(
        "cluster_qualification",
        lambda run, *of: block.claim(RunKey("cluster_qualification", run), _params(nodes=list(NAMES)), 1, None, *of),
        lambda run: qualification.release(RunKey("cluster_qualification", run)),
        State.QUALIFIED,
    ),
    Holder(
        "node_revalidation",
        lambda run, *of: revalidation.claim(RunKey("node_revalidation", run), _params(node="n1"), None, *of),
        lambda run: qualification.release(RunKey("node_revalidation", run)),
        State.PRODUCTION,
    ),
]
REPAIR = Holder(
    "repair",
    lambda run: repair.claim(RunKey("repair", run), {"node": "n1", "fault": "gpu_memory", "reason": "a test"}),
    lambda run: repair.release(RunKey("repair", run)),
    State.QUARANTINE,
)
HOLDERS = [*TESTING, REPAIR]
each_dag = pytest.mark.parametrize("dag", HOLDERS, ids=[each.dag_id for each in HOLDERS])
each_test = pytest.mark.parametrize("dag", TESTING, ids=[each.dag_id for each in TESTING])


@pytest.fixture
def ready(fleet: Path, dag: Holder) -> None:
    """Nodes in the state in which the DAG takes them."""
    bring = {
        State.REGISTERED: lambda _: None, State.QUALIFIED: lives.qualified, State.PRODUCTION: lives.in_production,
        State.QUARANTINE: lambda name: store.nodes.move(name, State.QUARANTINE, "Ada", "XID 95"),
    }  # fmt: skip
    for name in NAMES:
        store.nodes.add(NewNode(name, "127.0.0.1", host_key(name), "cpu-generic"))
        bring[dag.begins](name)


def holders() -> set[str]:
    return {lease.run_id for lease in store.leases.live()}


def test_no_dag_that_holds_nodes_is_forgotten() -> None:
    """The admission DAG holds one only while it carries out an answer: tests/dags/test_admission.py."""
    assert {each.dag_id for each in HOLDERS} | {"admission", "held_verdict"} == dags.HOLDERS


@each_dag
def test_of_runs_that_want_a_node_at_the_same_moment_one_has_it(ready: None, dag: Holder) -> None:
    errors: dict[str, str] = {}
    gate = threading.Barrier(4)

    def want(run: str) -> None:
        gate.wait()
        try:
            dag.claim(run)
        except (AirflowFailException, AirflowSkipException) as error:
            errors[run] = str(error)
        else:
            errors[run] = ""

    threads = [threading.Thread(target=want, args=(f"run-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [run for run, refusal in errors.items() if not refusal]
    assert holders() == {winner}
    for run, refusal in errors.items():
        assert run == winner or f"run {winner} of {dag.dag_id}" in refusal


@each_dag
def test_what_one_dag_holds_no_other_takes(ready: None, dag: Holder) -> None:
    dag.claim("first")
    for other in HOLDERS:
        with pytest.raises((AirflowFailException, AirflowSkipException)):
            other.claim("second")
        assert holders() == {"first"}


def _ended(callback: Callable[[Any, str], None]) -> Callable[[Holder], None]:
    run = {"run_id": "first", "conf": {}, "run_after": None, "state": "failed"}
    return lambda dag: callback(SimpleNamespace(dag_id=dag.dag_id, **run), "")


ENDS: dict[str, Callable[[Holder], Any]] = {
    "its own teardown": lambda dag: dag.release("first"),
    "marked a success": _ended(listeners.on_dag_run_success),
    "marked failed": _ended(listeners.on_dag_run_failed),
    "deleted": lambda _: upkeep.sweep_leases(lambda dag_id, run_ids: 0),
}


@pytest.mark.parametrize("dag", [REPAIR], ids=["repair"])
@pytest.mark.parametrize("end", ENDS)
def test_after_any_end_of_a_repair_the_node_is_free_and_still_out_of_service(
    ready: None, dag: Holder, end: str
) -> None:
    dag.claim("first")
    ENDS[end](dag)
    assert store.leases.live() == []
    assert store.nodes.get("n1").state is State.QUARANTINE
    dag.claim("second")
    assert holders() == {"second"}


@each_test
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("at_work", [False, True], ids=["just taken", "at work"])
def test_after_any_end_the_node_is_free_and_the_next_run_has_it(
    ready: None, dag: Holder, end: str, at_work: bool
) -> None:
    dag.claim("first")
    if at_work:
        stage = block.STAGE if dag.dag_id == "cluster_qualification" else "intake"
        store.runs.begin_stage(RunKey(dag.dag_id, "first"), stage, node="n1")
    ENDS[end](dag)
    assert store.leases.live() == []
    assert store.runs.get(RunKey(dag.dag_id, "first"), node="n1").ended_at
    assert store.nodes.get("n1").state is dag.begins
    dag.claim("second")
    assert holders() == {"second"}


@each_test
def test_another_run_of_an_id_that_airflow_has_forgotten_takes_no_node(ready: None, dag: Holder) -> None:
    """The records of the first would end it before it has measured anything."""
    first, second = (datetime.datetime(2026, 7, day, tzinfo=datetime.UTC) for day in (1, 2))
    for _ in range(2):  # a Clear makes no other run
        dag.claim("first", first)
        dag.release("first")
    with pytest.raises(AirflowFailException, match="first"):
        dag.claim("first", second)
    assert holders() == set()
    assert store.nodes.get("n1").state is dag.begins
    dag.claim("second", second)


@each_test
def test_a_run_that_is_cleared_after_its_node_was_replaced_takes_no_node(ready: None, dag: Holder) -> None:
    """What it measured would be filed as the former machine's: a FAIL would vanish."""
    dag.claim("first")
    dag.release("first")
    store.adoption.replace("n1", "Ada", "the new one is here", host_key=host_key("new"))
    with pytest.raises(AirflowFailException, match="the machine that was n1"):
        dag.claim("first")
    assert holders() == set()


@each_test
def test_a_claim_that_fails_half_way_holds_nothing(ready: None, dag: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise MusterError("it cannot be begun")

    monkeypatch.setattr(store.runs, "begin", broken)
    with pytest.raises(AirflowFailException):
        dag.claim("first")
    assert store.leases.live() == []
