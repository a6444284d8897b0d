"""Whether a test run could claim its nodes now; the command line and the Fleet page check this before starting one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster import store
from muster.admission import service
from muster.errors import MusterError, of_sku_files
from muster.model.dags import NODE_REVALIDATION
from muster.model.nodes import Node
from muster.model.runs import RunKey
from muster.model.states import State
from muster.remote.job.launch import parse_launch
from muster.settings import settings
from muster_criteria.cluster.plan import MEMBERS_MAX, SOAK_MINUTES_MAX, Asked
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stages import STAGES
from muster_criteria.words import listed
from muster_reports import advice


def startable(node: Node, dag: str, run_id: str, level: str, reason: str, force_reason: str) -> str:
    """Returns who or what uses the node ("": nothing) if the run could claim it; the attempt is rolled back.

    Raises MusterError with the reason if it could not: the run exists, another run holds the node, it is in use and not
    forced (or not idle: a revalidation cannot be forced), its state or its record does not allow a test, its scheduler
    lets no test run for so long.
    """
    with of_sku_files():
        sku = load_sku(node.sku, settings().sku_folders)
        limit_s = programme.test_limit_s(sku, STAGES, level)
    parse_launch(node.launch)
    if any(run.run_id == run_id and run.dag_id == dag for run in store.runs.find(node=node.name)):
        raise exists(run_id)
    allocation = service.allocation(node.name)
    if dag == NODE_REVALIDATION:
        if why := service.in_use(node):
            raise MusterError(f"it is left alone: {why}")
        service.check_length(node.name, limit_s)
        allocation = ""  # idle, and tested closed or by a job that gives way: no job shares it
    elif allocation and not force_reason:
        raise MusterError(f"it is in use: {allocation}; only --force with --force-reason tests it anyway")
    with store.engine.rehearsal():
        store.leases.acquire(node.name, RunKey(dag, run_id))
        store.runs.begin(RunKey(dag, run_id), node.name, level, reason, force_reason or None)
    return allocation


def exists(run_id: str) -> MusterError:
    """The refusal of a run that exists already."""
    return MusterError(f"run {run_id} exists already: give another reason for another run")


def together(nodes: Sequence[Node]) -> None:
    """Raises MusterError unless these nodes can be a block."""
    names = [node.name for node in nodes]
    if not 2 <= len(names) == len(set(names)) <= MEMBERS_MAX:
        raise MusterError(f"a block is 2 to {MEMBERS_MAX} nodes, each named once, not {listed(names) or 'none'}")
    for node in nodes:
        if node.state not in (State.QUALIFIED, State.CLUSTER_VALIDATION):
            raise MusterError(
                f"{node.name} is in {node.state}, and only qualified nodes are tested together; "
                f"{advice.way_to_test(node.name, node.state)}"
            )
    racks = {node.rack for node in nodes}
    for held in store.racks.held(simulated=nodes[0].simulated):
        if held.rack in racks:
            raise MusterError(held.sentence)
    if len(skus := sorted({node.sku for node in nodes})) > 1:
        raise MusterError(f"a block is of one SKU, since its nodes are judged by each other, not of {listed(skus)}")
    if len({node.simulated for node in nodes}) > 1:
        raise MusterError("a block cannot mix real and simulated nodes: they are judged by each other")


def asked(params: Mapping[str, Any]) -> Asked:
    """Returns what a block's run is asked in addition to its level. Raises MusterError for what cannot be done."""
    minutes, faults = params.get("soak_minutes") or 0, bool(params.get("fault_run"))
    if not isinstance(minutes, int) or not 0 <= minutes <= SOAK_MINUTES_MAX:
        raise MusterError(f"soak_minutes is a whole number from 0 to {SOAK_MINUTES_MAX}, not {minutes!r}")
    if faults and not settings().shared_path:
        raise MusterError(
            "a training whose ranks are killed resumes from checkpoints: set MUSTER_SHARED_PATH, or leave fault_run out"
        )
    return Asked(minutes, faults)
