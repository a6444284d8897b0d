"""The fleet in figures, for metrics and pages."""

from __future__ import annotations

import dataclasses
import datetime

from muster.model.attention import Attention
from muster.model.breaker import Breaker
from muster.model.queues import AuditLag
from muster.model.runs import OfRun, RunKey
from muster.model.states import SERVING, State
from muster_criteria.chassis import Chassis
from muster_criteria.model import Verdict
from muster_reports.digest.numbers import FleetNumbers

DURATIONS_S = (60.0, 300.0, 900.0, 1800.0, 3600.0, 2 * 3600.0, 4 * 3600.0, 8 * 3600.0, 24 * 3600.0, 72 * 3600.0)

GIVE_BACK_S = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


@dataclasses.dataclass(frozen=True)
class NodeFigures:
    """One node. ``verdict``: of its last run (``runs.last_run_id``), "" without one.

    ``passed_at``: the oldest of the last PASSes of its stages; ``tested_at``: the oldest of their last tests that did
    not fail; None if some stage has none. ``looked_at``: the newest of these. All are of the present machine alone.
    ``paused``: a person paused its tests.
    """

    name: str
    sku: str
    rack: str
    state: str
    simulated: bool
    shadow: bool
    held: bool
    verdict: str
    passed_at: datetime.datetime | None
    tested_at: datetime.datetime | None
    looked_at: datetime.datetime | None
    certified: bool
    paused: bool

    @property
    def uncertified(self) -> bool:
        """Whether it serves, verified, without a valid certificate."""
        return self.state in SERVING and not self.certified and not self.shadow


@dataclasses.dataclass(frozen=True)
class Spread:
    """Durations under one set of labels: how many ended in each bucket (the last: above all limits), and their sum."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A queue: by labels, how many wait, and since when the oldest does."""

    counts: dict[tuple[str, ...], int]
    since: dict[tuple[str, ...], datetime.datetime]

    @property
    def oldest(self) -> datetime.datetime | None:
        """Since when the oldest of all waits; None without one."""
        return min(self.since.values(), default=None)


@dataclasses.dataclass(frozen=True)
class RankTime:
    """What one rank of a block spent on one part of a step, or one node in a collective: median seconds.

    ``part``: "compute", "communication", "input", "update", or the collective's name. ``straggler``: it held the others
    up.
    """

    node: str
    device: str
    part: str
    seconds: float
    straggler: bool = False


@dataclasses.dataclass(frozen=True)
class FleetFigures:
    """The fleet at one moment. ``findings``: by stage, part, severity and whether simulated. ``corrupting``: findings
    and reports of corrupted data, by metric or check. Durations: of stages by stage and level, of runs by DAG, level
    and verdict, and both by whether simulated. ``controller_faults``: runs that ended SKIPPED for one. ``tests``: by
    DAG and whether the node is simulated. ``ranks``: of the blocks that were judged in the last 24 hours, the latest of
    each node. ``pools``: by pool in which new nodes wait for their first job, and whether simulated, when a job of a
    new node last began, or else since when they wait. ``untested_since``: when each node in service without
    ``tested_at`` entered it. By whether nodes are simulated: ``uncertified_since``: of the node that is so for longest;
    ``unswept_since``: of the node in service that the health sweep could have read but has not for longest.
    ``due_after``: by SKU and whether simulated, how long after a PASS the next test of an idle node is due, at once
    without one; ``whole_after``: how long after it the whole test is. ``succeeded``: by DAG with a schedule, when a run
    of it succeeded last.
    """

    at: datetime.datetime
    nodes: tuple[NodeFigures, ...]
    breakers: dict[bool, Breaker]
    findings: dict[tuple[str, ...], int]
    corrupting: dict[tuple[str, ...], int]
    stage_durations: tuple[Spread, ...]
    run_durations: tuple[Spread, ...]
    controller_faults: dict[bool, int]
    give_back: tuple[Spread, ...]
    tests: Waiting
    mails: Waiting
    parked: int
    changes: Waiting
    differences: Waiting
    audit: tuple[AuditLag, ...]
    attention: tuple[Attention, ...] = ()
    numbers: tuple[FleetNumbers, ...] = ()
    ranks: tuple[RankTime, ...] = ()
    pools: dict[tuple[str, ...], datetime.datetime] = dataclasses.field(default_factory=dict)
    untested_since: dict[str, datetime.datetime] = dataclasses.field(default_factory=dict)
    uncertified_since: dict[bool, datetime.datetime] = dataclasses.field(default_factory=dict)
    unswept_since: dict[bool, datetime.datetime] = dataclasses.field(default_factory=dict)
    due_after: dict[tuple[str, bool], datetime.timedelta] = dataclasses.field(default_factory=dict)
    whole_after: datetime.timedelta = datetime.timedelta()
    succeeded: dict[str, datetime.datetime | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class NodeFigure:
    """One metric of one node: the value of its worst device, the least if the metric has a floor, else the greatest.
    ``ok``: whether all devices are within limits.
    """

    value: float
    unit: str
    floored: bool
    ok: bool


@dataclasses.dataclass(frozen=True)
class FleetRow(OfRun):
    """One node with its last run (``runs.last_run_id``); without one, ``verdict`` is None, the run's fields empty.
    ``state_since``: when the node came into its state. ``inconclusive``: inconclusive runs in a row. ``slot``: where it
    stands, by the labels ``pod`` and ``slot``. ``moved_for``: why the node came into its state, and ``moved_by`` who
    moved it; empty if a test moved it, or one has ended since. ``came_from``: the state before this one, None if the
    node had none other. ``spare``: kept out of production to replace another node (label ``spare``).
    ``paused_until``: the end of the pause of its tests; None, or a moment that is over, without one. ``held_for``: the
    verdict that is held, and why; "" without one. ``shadow``: adopted in service, and not verified.
    """

    node: str
    state: State
    sku: str
    rack: str
    simulated: bool
    held_run: RunKey | None
    contact_at: datetime.datetime | None
    dag_id: str
    run_id: str
    verdict: Verdict | None
    headline: str
    ended_at: datetime.datetime | None
    state_since: datetime.datetime | None
    inconclusive: int = 0
    pod: str = ""
    slot: str = ""
    moved_for: str = ""
    came_from: State | None = None
    spare: bool = False
    paused_until: datetime.datetime | None = None
    moved_by: str = ""
    held_for: str = ""
    shadow: bool = False

    @property
    def latest(self) -> str:
        """What was decided about the node after its last run, with who decided; else that run's headline."""
        return f"{self.moved_by} moved it to {self.state}: {self.moved_for}" if self.moved_for else self.headline


@dataclasses.dataclass(frozen=True)
class Point:
    """One value of a metric in a node's life. ``labels``: (name, text) in order of names."""

    at: datetime.datetime
    run_id: str
    level: str
    device: str
    labels: tuple[tuple[str, str], ...]
    value: float
    unit: str
    floor: float | None
    ceiling: float | None


@dataclasses.dataclass(frozen=True)
class BmcReading(OfRun):
    """What a node's BMC showed during one stage."""

    at: datetime.datetime
    stage: str
    dag_id: str
    run_id: str
    chassis: Chassis
