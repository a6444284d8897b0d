"""Predicts a test of nodes: probes with their time limits, duration, risks. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from muster.model.nodes import Node
from muster.model.stages import CLUSTER_STAGES, ROUND_STAGES
from muster.model.states import BROKEN, IN_FLIGHT, SERVING, State
from muster_criteria.cluster.plan import (
    PAIRS,
    Asked,
    cluster_calls,
    cluster_deadline_s,
    has_rounds,
    pair_call,
    pair_deadline_s,
)
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.declarations import declared_probes
from muster_criteria.stages import STAGES
from muster_criteria.words import duration

if TYPE_CHECKING:
    from muster_criteria.sku_files.model import Sku

OUT_OF_SERVICE = BROKEN | {State.RETIRED}

TEST_IN_SERVICE = (
    "it is tested out of service, or by a job that gives way; a FAIL puts it into quarantine, a new WARN into "
    "qualified; it serves again after a PASS, and after a test that found nothing"
)
"""The effect of a test of a node in production, by ``transitions.closing``."""


@dataclasses.dataclass(frozen=True)
class ProbePlan:
    """One probe of a stage: its time limit (s), whether it loads the machine, and for how long at least (s)."""

    probe: str
    timeout_s: float
    loads: bool
    timed_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """One stage: its probes in order, the time (s) after which its job ends, and whether its FAIL ends the run."""

    stage: str
    probes: tuple[ProbePlan, ...]
    deadline_s: float
    blocking: bool


def stage_plans(sku: Sku, level: str) -> tuple[StagePlan, ...]:
    """Returns what each stage runs on such a node at that level. Raises SkuError for an unknown level."""
    return tuple(
        StagePlan(
            stage,
            _probes(sku, programme.stage_calls(sku, stage, level, seed=0)),
            programme.stage_deadline_s(sku, stage, level),
            programme.blocking(sku, stage),
        )
        for stage in STAGES
    )


def stage_minutes(sku: Sku, level: str) -> dict[str, float]:
    """Returns the minutes that each stage takes at least at that level: the time under load, and starting and
    collecting. Raises SkuError for an unknown level.
    """
    return {
        plan.stage: (programme.START_AND_COLLECT_S + sum(probe.timed_s for probe in plan.probes)) / 60.0
        for plan in stage_plans(sku, level)
    }


def block_plans(sku: Sku, level: str, members: Sequence[str], asked: Asked) -> tuple[StagePlan, ...]:
    """Returns what each member of a block runs at that level: at most so many rounds of pairs, then all together, with
    what else is ``asked``. Raises ValueError for an unknown level or fewer than two members.
    """
    calls = cluster_calls(
        sku.block, members, master_addr="", master_ports=(), session="", level=level, seed=0, asked=asked
    )
    deadline_s = cluster_deadline_s(sku.block, level, len(members), asked)
    plans = [StagePlan(CLUSTER_STAGES[0], _probes(sku, calls[members[0]]), deadline_s, False)]
    if has_rounds(sku.block, level):
        # The number of rails of a pair is not known before the block runs, so its time under load is not counted here.
        pair = _probes(sku, [pair_call(sku.block, level, sku.block.probes[PAIRS].params_at(level), seed=0)])
        rounds_s = len(ROUND_STAGES) * pair_deadline_s(sku.block, level)
        plans.insert(0, StagePlan(f"pairs, in at most {len(ROUND_STAGES)} rounds", pair, rounds_s, False))
    return tuple(plans)


def _probes(sku: Sku, calls: Iterable[programme.CallSpec]) -> tuple[ProbePlan, ...]:
    declared, counted = declared_probes(), sku.devices.get("gpu")
    # An unknown number of devices counts as one, which gives the minimum time.
    devices = counted if isinstance(counted, int) and counted else 1
    return tuple(
        ProbePlan(call.probe, call.timeout_s, declared[call.probe].loads, _timed_s(call, devices)) for call in calls
    )


def _timed_s(call: programme.CallSpec, devices: int) -> float:
    from muster_node.agent.registry import discover
    from muster_node.probe import resolve_params

    probe = discover().probes[call.probe]
    return probe.timed_s(resolve_params(probe, call.params), devices)


def time_needed(plans: tuple[StagePlan, ...], usual_s: float | None, nodes: int, at_once: int) -> str:
    """Returns the duration of testing ``nodes`` nodes, ``at_once`` at a time. ``usual_s``: the typical duration (s)."""
    longest_s = sum(plan.deadline_s for plan in plans)
    rounds = math.ceil(nodes / at_once)
    most = f"at most {duration(longest_s * rounds)} unless a stage has to be repeated"
    usual = f"about {duration(usual_s * rounds)}, as the latest such runs took" if usual_s is not None else ""
    timed_s = sum(probe.timed_s for plan in plans for probe in plan.probes)
    load = f"at least {duration(timed_s * rounds)} under load" if timed_s else ""
    text = "; ".join(filter(None, (load, usual, most if usual else f"{most} (none like it is recorded yet)")))
    return text if nodes == 1 else f"{text}; {nodes} nodes, {min(nodes, at_once)} at a time"


def risks_of_test(node: Node, plans: tuple[StagePlan, ...], used_by: str) -> tuple[str, ...]:
    """Returns the risks of testing the node now, gravest first. ``used_by``: who or what uses it ("": nothing)."""
    loading = [plan.stage for plan in plans if any(probe.loads for probe in plan.probes)]
    risks = [f"full load in {', '.join(loading)}"] if loading else []
    if used_by:
        risks.insert(0, f"it is in use: {used_by}; its user shares the machine with the load")
    if node.shadow:
        risks.append("in shadow mode it stays in production, whatever is found")
    elif node.state in SERVING:
        risks.append(TEST_IN_SERVICE)
    else:
        risks.append("a FAIL puts it into quarantine")
    return tuple(risks)


def risks_of_move(before: State, after: State, *, shadow: bool = False) -> tuple[str, ...]:
    """Returns the risks of moving a node from ``before`` to ``after``."""
    risks = []
    if after is State.PRODUCTION and before not in SERVING:
        adopted = ", in shadow mode: it serves whatever is found" if shadow else ""
        risks.append(f"it enters production on a person's decision, without a full-coverage PASS{adopted}")
    if before is after is State.PRODUCTION:
        risks.append("what is open or unjudged of it is accepted without a test")
    if before in SERVING and after not in SERVING:
        risks.append("it leaves production")
    if after is State.RETIRED:
        risks.append("it is neither used nor tested until a person brings it back")
    elif after in OUT_OF_SERVICE and before not in OUT_OF_SERVICE:
        risks.append(f"it is not tested while it is in {after}")
    if before in IN_FLIGHT | {State.REVALIDATION} and after in OUT_OF_SERVICE:
        risks.append("a run that is at work on it cannot go on")
    return tuple(risks)


def risks_of_pause(state: State, run_id: str) -> tuple[str, ...]:
    """Returns the risks of pausing the tests of a node in that state. ``run_id``: of the run that holds it, or ""."""
    risks = [f"run {run_id} holds it and goes on: end it in Airflow if nothing may run there"] if run_id else []
    if state is State.PRODUCTION:
        risks.append("it goes on serving, and no test finds what fails on it until then")
    elif state is State.REVALIDATION:
        risks.append("it stays out of production until then, since no test returns it")
    return tuple(risks)
