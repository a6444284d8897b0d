"""What persons do at the wrong moment, in Airflow over REST and in the schedulers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from muster import store
from muster.integration.airflow_api import REASON
from muster.model.dags import (
    ADMISSION,
    CLUSTER_QUALIFICATION,
    HEALTH_SWEEP,
    NODE_QUALIFICATION,
    NODE_REVALIDATION,
    REPAIR,
)
from muster.model.states import State
from tests.chaos.evidence import schedulers_show
from tests.chaos.faults import NotNow, fault
from tests.chaos.world import PERSON, World

HELD_BACK_S = 45.0
"""For how long a frozen API server may hold back a request, at most."""
HOLDING = (NODE_QUALIFICATION, NODE_REVALIDATION, REPAIR, CLUSTER_QUALIFICATION)
TASKS = {
    **dict.fromkeys(
        (NODE_QUALIFICATION, NODE_REVALIDATION),
        ("claim", "intake", "burn_in", "integrity", "performance", "thermal", "conclude", "release", "report"),
    ),
    REPAIR: ("claim", "evidence", "act", "returned", "release", "proofs", "prove"),
    CLUSTER_QUALIFICATION: (
        "claim_block",
        "plan_1",
        "plan_2",
        "gather",
        "train",
        "judge_block",
        "admit",
        "conclude",
        "release",
        "report",
    ),
}


def _run(world: World, dice: random.Random, *states: str) -> dict[str, Any]:
    """A run that holds a node, in one of these states."""
    runs = [run for dag in HOLDING for run in world.client.runs(dag) if run["state"] in states]
    if not runs:
        raise NotNow
    return dice.choice(sorted(runs, key=lambda run: str(run["dag_run_id"])))


def _path(run: dict[str, Any]) -> str:
    return f"/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}"


@fault(0, 1)
def task_cleared(world: World, dice: random.Random) -> Iterator[str]:
    run = _run(world, dice, "running", "failed", "success")
    task = dice.choice(TASKS[run["dag_id"]])
    world.ledger.touch(run["dag_run_id"], f"{task} cleared")
    clear = {
        "dry_run": False, "dag_run_id": run["dag_run_id"], "task_ids": [task], "only_failed": False,
        "include_downstream": True,
    }  # fmt: skip
    world.client._request("POST", f"/dags/{run['dag_id']}/clearTaskInstances", json=clear)
    yield f"{task} of {run['dag_run_id']}"


@fault(0, 1)
def run_marked(world: World, dice: random.Random) -> Iterator[str]:
    run, state = _run(world, dice, "running"), dice.choice(("failed", "success"))
    world.ledger.touch(run["dag_run_id"], f"marked {state}")
    world.client._request("PATCH", _path(run), json={"state": state})
    yield f"{run['dag_run_id']} {state}"


@fault(0, 1)
def run_deleted(world: World, dice: random.Random) -> Iterator[str]:
    run = _run(world, dice, "running", "failed", "success")
    world.ledger.touch(run["dag_run_id"], "deleted")
    world.client._request("DELETE", _path(run))
    yield str(run["dag_run_id"])


@fault(0, 1)
def triggered_twice(world: World, dice: random.Random) -> Iterator[str]:
    """Another run of a node that is under test."""
    run = _run(world, dice, "running")
    node = run["conf"].get("node") or run["conf"]["nodes"][0]
    again = f"{node}__again-{dice.randrange(10**6)}"
    world.client.trigger(run["dag_id"], again, {**run["conf"], "reason": "again"})
    yield again


@fault(0, 1)
def xcom_edited(world: World, dice: random.Random) -> Iterator[str]:
    """The lease's token and the node's name, which no task hands on so, or the names of a block, which ``claim_block``
    returned.
    """
    run = _run(world, dice, "running")
    other = dice.choice(world.fleet.names)
    alone = {"node": other, "sku": "fleet-node", "level": "demo", "token": 1, "simulated": False}
    task, value = ("claim_block", [other]) if run["dag_id"] == CLUSTER_QUALIFICATION else ("claim", alone)
    path = f"{_path(run)}/taskInstances/{task}/xcomEntries"
    answer = world.client._request("PATCH", f"{path}/return_value", json={"value": value}, expected=(200, 404))
    if answer.status_code == 404:
        forged = {"key": "return_value", "value": value}
        answer = world.client._request("POST", path, json=forged, expected=(201, 404))
    if answer.status_code == 404:
        raise NotNow
    yield f"{run['dag_run_id']} as if of {other}"


@fault(0, 1)
def answered_again(world: World, dice: random.Random) -> Iterator[str]:
    """A second and other answer to a question that has one."""
    runs = [run for run in world.client.runs(ADMISSION) if run["state"] == "success"]
    if not runs:
        raise NotNow
    run = dice.choice(sorted(runs, key=lambda run: str(run["dag_run_id"])))
    path = f"{_path(run)}/taskInstances/ask/-1/hitlDetails"
    body = {"chosen_options": ["RMA"], "params_input": {REASON: "too late"}}
    world.client._request("PATCH", path, json=body, expected=(200, 404, 409))
    yield str(run["dag_run_id"])


def _rest(seconds: float) -> Callable[[], None]:
    """A step that succeeds so long after its first attempt."""
    due: list[float] = []

    def step() -> None:
        due.append(time.monotonic() + seconds)
        if time.monotonic() < due[0]:
            raise TimeoutError

    return step


@fault(3, 20)
def dag_paused(world: World, dice: random.Random) -> Iterator[str]:
    dag = dice.choice((*HOLDING, ADMISSION, HEALTH_SWEEP))

    def unpause() -> None:
        world.client.unpause(dag)

    # Twice: a request to pause that a frozen API server holds back may be carried out after the first one.
    with world.lifted_by(unpause, _rest(HELD_BACK_S), unpause):
        world.client.pause(dag)
        yield dag


@fault(0, 1)
def node_quarantined(world: World, dice: random.Random) -> Iterator[str]:
    """A person takes a node out of service, whatever runs on it."""
    name = dice.choice(world.fleet.names)
    if store.nodes.get(name).state is State.QUARANTINE:
        raise NotNow
    if (lease := store.leases.get(name)) is not None:
        world.ledger.touch(lease.run_id, "its node is taken out of service")
    store.nodes.move(name, State.QUARANTINE, PERSON, f"smells of smoke {dice.randrange(1000)}")
    yield name


@fault(10, 60)
def foreign_drain(world: World, dice: random.Random) -> Iterator[str]:
    """An administrator takes a node from the users, and returns it later, whatever Muster made of it meanwhile."""
    shown = schedulers_show(world)
    names = [name for name in world.fleet.names if not shown[name].drained and not world.ledger.is_drained(name)]
    if not names:
        raise NotNow
    name, reason = dice.choice(names), f"bad fan {dice.randrange(1000)}"
    scheduler = world.scheduler_of(name)

    def resume() -> None:
        world.ledger.resuming(name)
        if scheduler.shows()[name] == (True, reason):  # and not after an answer that was lost
            scheduler.resume(name)

    with world.lifted_by(resume):
        scheduler.drain(name, reason)
        world.ledger.drained(name, reason)
        yield name
