"""What a DAG run did with a node: the run, its jobs, the verdicts of its stages."""

from __future__ import annotations

import dataclasses
import datetime

from muster.model.states import State
from muster_criteria.model import Finding, Verdict


@dataclasses.dataclass(frozen=True)
class Run:
    """What a DAG run did with one node; ``verdict`` is None until it has ended."""

    dag_id: str
    run_id: str
    node: str
    sku: str
    level: str
    reason: str
    forced: str | None
    required_stages: tuple[str, ...]
    state_before: State
    state_after: State | None
    verdict: Verdict | None
    headline: str
    simulated: bool
    started_at: datetime.datetime
    ended_at: datetime.datetime | None
    why_held: str = ""
    """Why the circuit breaker kept the verdict from withdrawing the node, if it did."""
    started_by: str = ""
    """The login that started it ("airflow:ada"), "" if a program did."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One detached job on a node. ``state``: as ``muster.remote`` names it (submitted, running, collected, …)."""

    dag_id: str
    run_id: str
    stage: str
    attempt_key: str
    state: str
    remote_dir: str
    boot_id: str = ""
    fence: int = 0
    started_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None
    note: str = ""
    node: str = ""
    """Needed only where the run tests several nodes."""
    chassis: str = ""
    """The BMC's readings before it, as ``muster_criteria.chassis.Chassis`` writes it."""
    repeat_probes: tuple[str, ...] = ()
    """The probes to run again after it, before the stage is judged."""


@dataclasses.dataclass(frozen=True)
class StageVerdict:
    """The current verdict of a run on one stage of its node, at one level."""

    stage: str
    level: str
    verdict: Verdict
    full_coverage: bool
    reason: str
    recorded_at: datetime.datetime
    dag_id: str
    run_id: str
    snapshot: str = ""
    """The version of the peer statistics it was judged by."""
    simulated: bool = False
    attempts: int = 1


@dataclasses.dataclass(frozen=True)
class OpenFinding:
    """A finding of a node's latest tests; ``finding.waived``: the waiver that covers it now, "" without one."""

    finding: Finding
    stage: str
    dag_id: str
    run_id: str
    recorded_at: datetime.datetime
