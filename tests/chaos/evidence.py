"""What happened, read with none of Muster's code: diaries, mails, the receiver's lines, SQL, schedulers, psutil."""

from __future__ import annotations

import dataclasses
import email
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import psycopg

from muster_demo.between import KIND
from tests.chaos.ledger import Drain
from tests.chaos.nodes import processes_of
from tests.chaos.receiver import name_of
from tests.chaos.schedulers import Scheduler, Shown
from tests.chaos.world import World

Rows = list[tuple[Any, ...]]


class Sample(NamedTuple):
    """A node at one moment; ``faulty``: its machine."""

    at: float
    node: str
    drained: bool
    reason: str
    faulty: bool


class Line(NamedTuple):
    """A line of a node's diary. ``what``: start, overlap (``about`` is the stage), measured (the hash), tampered (how),
    reset (the GPU's serial number).
    """

    node: str
    at: float
    what: str
    job: str
    about: str


class Job(NamedTuple):
    """A job in the records, by the name of its folder."""

    run: str
    node: str
    stage: str


class Run(NamedTuple):
    """A run with one node in the records."""

    dag: str
    run: str
    node: str
    ended: bool
    verdict: str
    headline: str


class Stage(NamedTuple):
    """A verdict on a stage in the records, superseded ones too; ``at``: seconds of the epoch."""

    run: str
    node: str
    stage: str
    verdict: str
    sha256: str
    at: float


class Quarantined(NamedTuple):
    """A move into quarantine in the records."""

    node: str
    at: float
    actor: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Everything that the observers judge. None: that source could not be read, so what rests on it is unknown.

    ``nodes``: {node: its state in the records}. ``machines``: {node: [(since, faulty)]}. ``touched``: runs whose course
    a person of the campaign changed. ``reboots``: (node, when it lost power). ``worn``: (node, when it began to fail
    in service); ``known``: (node, when the records first knew of it); ``let_in``: (node, when a person let it into
    service). ``sides``: what the
    records have of rounds of pairs, which have no verdict of their own. ``leases``: (node, run) in force;
    ``live``: runs that Airflow has under way. ``mails``: (Message-ID, run, node) of each mail filed; ``unsent``: keys
    in the outbox. ``processes``: (node, what runs there). ``events``, ``accepted``: names of events in the records, and
    of those that the receiver accepted. ``restores``: (as of when, when) the records were restored; what they had
    learnt between may be lost: ``forgotten`` has the names of jobs, hashes of results and keys of mails that
    were not sent, ``resent`` the mails that may come once more. ``jobs``, ``runs``, ``stages``, ``leases`` are the
    present records' alone; ``sides``, ``quarantined``, ``known`` and ``let_in`` those of the replaced ones too.
    """

    touched: frozenset[str] = frozenset()
    machines: Mapping[str, list[tuple[float, bool]]] = dataclasses.field(default_factory=dict)
    drains: tuple[Drain, ...] = ()
    reboots: tuple[tuple[str, float], ...] = ()
    worn: tuple[tuple[str, float], ...] = ()
    stuck: tuple[str, ...] = ()
    diary: tuple[Line, ...] | None = ()
    samples: tuple[Sample, ...] | None = ()
    shown: Mapping[str, Shown] | None = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, str] | None = dataclasses.field(default_factory=dict)
    jobs: Mapping[str, Job] | None = dataclasses.field(default_factory=dict)
    sides: frozenset[Job] | None = frozenset()
    runs: tuple[Run, ...] | None = ()
    stages: tuple[Stage, ...] | None = ()
    quarantined: tuple[Quarantined, ...] | None = ()
    known: tuple[tuple[str, float], ...] | None = ()
    let_in: tuple[tuple[str, float], ...] = ()
    leases: tuple[tuple[str, str], ...] | None = ()
    live: frozenset[str] | None = frozenset()
    processes: tuple[tuple[str, str], ...] | None = ()
    mails: tuple[tuple[str, str, str], ...] | None = ()
    unsent: tuple[str, ...] | None = ()
    events: frozenset[str] | None = frozenset()
    accepted: frozenset[str] | None = frozenset()
    restores: tuple[tuple[float, float], ...] = ()
    forgotten: frozenset[str] = frozenset()
    resent: tuple[tuple[str, str, str], ...] = ()


def schedulers_show(world: World) -> dict[str, Shown]:
    """Every node as its scheduler shows it. Raises as ``Scheduler``."""
    return {node: shown for scheduler in world.schedulers for node, shown in scheduler.shows().items()}


def sample(world: World, scheduler: Scheduler) -> list[Sample]:
    """All nodes of one scheduler at this moment. Raises as ``Scheduler``."""
    shown = scheduler.shows()
    at = time.time()
    return [Sample(at, node, *each, world.ledger.is_faulty(node)) for node, each in shown.items()]


def diary(folder: Path, node: str) -> list[Line]:
    """What a node wrote down."""
    path = folder / "diary"
    found = []
    for text in path.read_text().splitlines() if path.exists() else []:
        at, what, job, about = text.split(" ", 3)
        found.append(Line(node, float(at), what, job, about))
    return found


def mails(folder: Path) -> list[tuple[str, str, str]]:
    """The mails filed."""
    parsed = (email.message_from_bytes(path.read_bytes()) for path in sorted(folder.glob("*.eml")))
    return [(str(m["Message-ID"]), str(m["X-Muster-Run"] or ""), str(m["X-Muster-Node"] or "")) for m in parsed]


def _command(process: psutil.Process) -> str:
    """Its command line without folders, which are of this machine; "" if it ended meanwhile."""
    try:
        return " ".join(os.path.basename(word) or word for word in process.cmdline())[:100]
    except psutil.Error:
        return ""


def _query(url: str, statement: str) -> Rows:
    with psycopg.connect(url) as connection:
        return connection.execute(statement.encode()).fetchall()


RUNS = """SELECT dag_id, run_id, node, ended_at IS NOT NULL, coalesce(verdict, ''), headline FROM runs"""
JOBS = """SELECT j.remote_dir, r.run_id, r.node, j.stage FROM jobs j JOIN runs r ON r.id = j.run"""
SIDES = """SELECT r.run_id, r.node, 'fabric_round_' || s.number FROM round_sides s JOIN runs r ON r.id = s.run"""
STAGES = """SELECT r.run_id, s.node, s.stage, s.verdict, s.result_sha256, extract(epoch FROM s.recorded_at)::float
            FROM stages s JOIN runs r ON r.id = s.run"""
QUARANTINED = """SELECT node, extract(epoch FROM at)::float, actor, reason FROM events
                 WHERE to_state = 'quarantine' AND from_state <> 'quarantine'"""
KNOWN = f"SELECT node, extract(epoch FROM first_seen)::float FROM health WHERE \"check\" = '{KIND}'"
LET_IN = """SELECT node, extract(epoch FROM at)::float FROM events
             WHERE to_state = 'production' AND from_state <> 'production' AND actor <> 'muster'"""
UNSENT = "SELECT key FROM outbox WHERE sent_at IS NULL"
LIVE = "SELECT run_id FROM dag_run WHERE state IN ('queued', 'running') AND dag_id = ANY('{%s}')"
HOLDING = ("node_qualification", "node_revalidation", "admission", "cluster_qualification", "repair", "held_verdict")


def gather(world: World, samples: list[Sample]) -> Evidence:
    """Read every source once, at the end of a leg. Raises psycopg.Error, or as ``Scheduler``."""
    records, airflow = world.database.url(world.records), world.database.url("airflow")
    replaced = [world.database.url(restore.replaced) for restore in world.ledger.restores]

    def ever(statement: str) -> set[tuple[Any, ...]]:
        return {row for url in (records, *replaced) for row in _query(url, statement)}

    fleet, ledger = world.fleet, world.ledger
    queue = world.slurm.call("squeue", "--noheader", "--format=%N %j")
    left = [
        (node, job) for node, job in (line.split(" ", 1) for line in queue.splitlines()) if job.startswith("muster")
    ]
    for name in fleet.names:
        left += [(name, command) for command in map(_command, processes_of(fleet.home(name))) if command]
    jobs = {os.path.basename(row[0]): Job(*row[1:]) for row in _query(records, JOBS)}
    return Evidence(
        touched=frozenset(ledger.touched),
        machines=dict(ledger.machines),
        drains=tuple(ledger.drains),
        reboots=tuple(ledger.reboots),
        worn=tuple(ledger.worn),
        stuck=tuple(ledger.stuck),
        diary=tuple(line for name in fleet.names for line in diary(fleet.home(name), name)),
        samples=tuple(samples),
        shown=schedulers_show(world),
        nodes={str(node): str(state) for node, state in _query(records, "SELECT name, state FROM nodes")},
        jobs=jobs,
        sides=frozenset(Job(*row) for row in ever(SIDES)),
        runs=tuple(Run(*row) for row in _query(records, RUNS)),
        stages=tuple(Stage(*row) for row in _query(records, STAGES)),
        quarantined=tuple(Quarantined(*row) for row in ever(QUARANTINED)),
        known=tuple((str(node), float(at)) for node, at in ever(KNOWN)),
        let_in=tuple((str(node), float(at)) for node, at in ever(LET_IN)),
        leases=tuple((n, r) for n, r in _query(records, "SELECT node, run_id FROM leases WHERE released_at IS NULL")),
        live=frozenset(run for (run,) in _query(airflow, LIVE % ",".join(HOLDING))),
        processes=tuple(left),
        mails=tuple(mails(world.folder / "mails")),
        unsent=tuple(key for (key,) in _query(records, UNSENT)),
        events=frozenset(name_of(*row) for row in _query(records, "SELECT id, at FROM events")),
        accepted=frozenset((world.folder / "events").read_text().split()),
        restores=tuple((restore.saved, restore.at) for restore in ledger.restores),
        forgotten=frozenset(name for restore in ledger.restores for name in restore.lost),
        resent=tuple(mail for restore in ledger.restores for mail in restore.mails),
    )


def known_to(url: str) -> frozenset[str]:
    """The names of jobs, hashes of results and keys of mails that wait, in these records."""
    jobs = [os.path.basename(row[0]) for row in _query(url, JOBS)]
    results = [Stage(*row).sha256 for row in _query(url, STAGES)]
    return frozenset([*jobs, *results, *(key for (key,) in _query(url, UNSENT))])
