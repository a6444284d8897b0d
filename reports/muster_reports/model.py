"""The values a report is made of. The controller fills them in."""

from __future__ import annotations

import dataclasses
import datetime

from muster_criteria.cluster.acceptance.values import Training
from muster_criteria.cluster.fabric.judging.found import Fabric
from muster_criteria.model import Finding, Judgement, Verdict


@dataclasses.dataclass(frozen=True)
class Series:
    """One telemetry series for a chart: seconds since the stage began, and values in ``unit``."""

    series: str
    device: str
    unit: str
    seconds: tuple[float, ...]
    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class StageReport:
    """One stage of a run: the judgement, when it ran, how its job and each probe ended, and its telemetry.

    ``end``: how the job ended, as the node reported it ("completed", "busy", "fenced", "terminated", "deadline",
    "error"); empty if nothing came from the node. ``probes``: (probe, status, reason).
    """

    judgement: Judgement
    started_at: datetime.datetime | None
    duration_s: float | None
    probes: tuple[tuple[str, str, str], ...]
    telemetry: tuple[Series, ...] = ()
    attempts: int = 1
    end: str = "completed"


@dataclasses.dataclass(frozen=True)
class RunReport:
    """One finished DAG run of one node, as a mail or a page shows it.

    ``stages`` are in the order of the node's life; a stage that did not run is in ``not_run`` with the reason.
    ``started_at``: when its first job began, so without the wait for a slot.
    ``waivers``, ``forced`` (a --force reason), ``shadow`` (findings do not withdraw the node) and ``why_held`` (why the
    verdict is kept from withdrawing the node) are shown on the first screen. ``result_json`` is
    attached. ``fabric``: what the rounds of pairs of its block found; None without any. ``training``: what the
    training of its block reached; None without any. ``replacement``: which node may take its place, as a sentence;
    empty if none is proposed. ``why_left``: why the run ended the node's service, though nothing failed; empty if it
    did not. ``spare``: the node is kept as one. ``breaker``: the circuit breaker's state when the report was made,
    with one sentence; may be empty.
    """

    node: str
    sku: str
    run_id: str
    dag_id: str
    reason: str
    simulated: bool
    verdict: Verdict
    headline: str
    state_before: str
    state_after: str
    started_at: datetime.datetime
    ended_at: datetime.datetime
    identity: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    stages: tuple[StageReport, ...]
    not_run: tuple[tuple[str, str], ...] = ()
    waivers: tuple[str, ...] = ()
    forced: str | None = None
    run_url: str | None = None
    result_json: str = "{}"
    shadow: bool = False
    why_held: str = ""
    fabric: Fabric | None = None
    training: Training | None = None
    replacement: str = ""
    breaker: str = ""
    why_left: str = ""
    spare: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found, in the order of the stages."""
        return tuple(each for stage in self.stages for each in stage.judgement.findings)


@dataclasses.dataclass(frozen=True)
class Section:
    """A section that is shown as a sentence and a table, either of which may be empty. ``more``: how many rows were cut
    off.
    """

    title: str
    sentence: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more: int = 0
