"""What a DAG run did with a node: the run, its jobs, the verdicts of its stages."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Protocol

from muster.model.states import State
from muster_criteria.model import Finding, Verdict


@dataclasses.dataclass(frozen=True, order=True)
class RunKey:
    """Which DAG run: a run that tests several nodes has one key and a ``Run`` for each. ``str``: "dag_id/run_id"."""

    dag_id: str
    run_id: str

    def __str__(self) -> str:
        return f"{self.dag_id}/{self.run_id}"

    @classmethod
    def of(cls, run: RunLike) -> RunKey:
        """Returns the key of an Airflow run, or of a row that names one."""
        return cls(run.dag_id, run.run_id)

    @classmethod
    def parse(cls, text: str) -> RunKey | None:
        """Returns the key that ``str`` wrote; None of an empty text."""
        dag_id, _, run_id = text.partition("/")
        return cls(dag_id, run_id) if run_id else None


class RunLike(Protocol):
    """What names a DAG run by two columns: an Airflow run, a row of a table."""

    @property
    def dag_id(self) -> Any: ...  # noqa: D102

    @property
    def run_id(self) -> Any: ...  # noqa: D102


class OfRun:
    """A value that names its DAG run by ``dag_id`` and ``run_id``."""

    @property
    def key(self: RunLike) -> RunKey:
        """The run's key."""
        return RunKey.of(self)


UNJUDGED = "measured, and to be judged with the other members of its block"
"""The reason of a member's stage until its block is judged."""

PREEMPTED = "Preempted: "
"""Begins the headline of a run that ended SKIPPED since its scheduler took the node back for a user's job."""


@dataclasses.dataclass(frozen=True)
class Run(OfRun):
    """What a DAG run did with one node; ``verdict`` is None until it has ended. ``why_held``: why the verdict was
    kept from withdrawing the node, if it was. ``started_by``: the login that started it ("airflow:ada"), ""
    if a program did.
    """

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
    started_by: str = ""


@dataclasses.dataclass(frozen=True)
class Job(OfRun):
    """One detached job on a node. ``state``: as ``muster.remote`` names it (submitted, running, collected, …).
    ``node``: needed only where the run tests several nodes. ``chassis``: the BMC's readings before it, as
    ``muster_criteria.chassis.Chassis`` writes it. ``work``: digest of what its probes do, "" before it is started.
    ``repeat_probes``: the probes to run again after it, before the stage is judged.
    """

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
    chassis: str = ""
    work: str = ""
    repeat_probes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class StageVerdict(OfRun):
    """The current verdict of a run on one stage of its node, at one level. ``snapshot``: the version of the peer
    statistics it was judged by.
    """

    stage: str
    level: str
    verdict: Verdict
    full_coverage: bool
    reason: str
    recorded_at: datetime.datetime
    dag_id: str
    run_id: str
    snapshot: str = ""
    simulated: bool = False
    attempts: int = 1


@dataclasses.dataclass(frozen=True)
class OpenFinding(OfRun):
    """A finding of a node's latest tests; ``finding.waived``: the waiver that covers it now, "" without one."""

    finding: Finding
    stage: str
    dag_id: str
    run_id: str
    recorded_at: datetime.datetime
