"""The fleet records as SQLAlchemy tables. Internal to ``muster.store``, which returns frozen values.

Two tables are more than storage: ``leases`` allows one live row per node (a partial unique index), and ``events`` is
append-only (triggers of the initial migration).
"""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.model.runs import OfRun
from muster.store.database import decisions as decisions  # their tables belong to the same metadata
from muster.store.database import digests as digests
from muster.store.database import fabric as fabric
from muster.store.database import health as health
from muster.store.database import learned as learned
from muster.store.database import outgoing as outgoing
from muster.store.database import repairs as repairs
from muster.store.database.base import Base as Base  # imported from here, its metadata holds all tables
from muster.store.database.base import BigId


class NodeRow(Base):
    """A machine under its name. ``fence`` is the highest fencing token ever given out for it; it only grows.

    ``machine``: how many machines have had the name, which separates their records without relying on clocks;
    ``machine_since``: since when it is this one. ``environment``: what it reported last. ``shadow``: adopted while it
    served, unverified. ``held_run``: "dag_id/run_id" of the run whose verdict is held, until a person or another test
    decides. ``bmc``: address of its BMC, without secrets. ``paused_until``: the end of the pause that ``paused_by``
    gave it for the reason ``paused_for``; None or past if it is not paused. ``lemon_since``: when ``lemon_by`` marked
    it as a lemon for ``lemon_for``, or None. ``machine_event``: the last event (``EventRow.id``) before this machine.
    ``accepted``, ``kept``, ``repaired``, ``sku_after``: the last stage (``StageRow.id``) recorded when a person
    admitted it, knowing its warnings; when a person kept it in service; before its last repair, or before this machine;
    before its SKU changed. ``spell``: how often the name entered service, or was verified in it. ``placed``,
    ``remarked``: how many parts its reports put into this machine or took to be another node's.
    """

    __tablename__ = "nodes"
    __table_args__ = (
        Index("uq_nodes_host_key", "host_key", unique=True,
              sqlite_where=text("state != 'retired'"), postgresql_where=text("state != 'retired'")),
    )  # fmt: skip

    name: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    port: Mapped[int]
    user: Mapped[str]
    host_key: Mapped[str]
    sku: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    launch: Mapped[dict[str, Any]]
    work_dir: Mapped[str]
    rack: Mapped[str]
    pool: Mapped[str]
    labels: Mapped[dict[str, Any]]
    simulated: Mapped[bool]
    added_at: Mapped[datetime.datetime]
    fence: Mapped[int] = mapped_column(BigInteger, default=0)
    inconclusive: Mapped[int] = mapped_column(default=0)
    contact_at: Mapped[datetime.datetime | None]
    machine: Mapped[int] = mapped_column(default=1)
    machine_since: Mapped[datetime.datetime]
    environment: Mapped[dict[str, Any]] = mapped_column(default=dict)
    shadow: Mapped[bool] = mapped_column(default=False)
    held_run: Mapped[str] = mapped_column(default="")
    bmc: Mapped[dict[str, Any]] = mapped_column(default=dict)
    paused_until: Mapped[datetime.datetime | None]
    paused_by: Mapped[str] = mapped_column(default="")
    paused_for: Mapped[str] = mapped_column(default="")
    lemon_since: Mapped[datetime.datetime | None]
    lemon_by: Mapped[str] = mapped_column(default="")
    lemon_for: Mapped[str] = mapped_column(default="")
    accepted: Mapped[int] = mapped_column(BigInteger, default=0)
    kept: Mapped[int] = mapped_column(BigInteger, default=0)
    repaired: Mapped[int] = mapped_column(BigInteger, default=0)
    sku_after: Mapped[int] = mapped_column(BigInteger, default=0)
    machine_event: Mapped[int] = mapped_column(BigInteger, default=0)
    spell: Mapped[int] = mapped_column(default=0)
    placed: Mapped[int] = mapped_column(default=0)
    remarked: Mapped[int] = mapped_column(default=0)


class PartRow(Base):
    """A part with a serial, wherever it sits; its identity is its serial."""

    __tablename__ = "parts"
    __table_args__ = (UniqueConstraint("kind", "serial"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    kind: Mapped[str]
    serial: Mapped[str]
    first_seen: Mapped[datetime.datetime]


class PlacementRow(Base):
    """Where a part sat, from when to when; one open placement per part and per slot of a node.

    ``after`` and ``until_after``: the node's last stage (``StageRow.id``) by then, which say what was tested on it.
    """

    __tablename__ = "placements"
    __table_args__ = (
        Index("uq_placements_part_open", "part_id", unique=True,
              sqlite_where=text("until IS NULL"), postgresql_where=text("until IS NULL")),
        Index("uq_placements_slot_open", "node", "slot", unique=True,
              sqlite_where=text("until IS NULL"), postgresql_where=text("until IS NULL")),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    part_id: Mapped[int] = mapped_column(ForeignKey("parts.id"), index=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), index=True)
    slot: Mapped[str]
    since: Mapped[datetime.datetime]
    seen_at: Mapped[datetime.datetime]
    until: Mapped[datetime.datetime | None]
    after: Mapped[int] = mapped_column(BigInteger, default=0)
    until_after: Mapped[int | None] = mapped_column(BigInteger)


class LeaseRow(Base):
    """Who leased a node and with which token; the row without ``released_at`` is the one that is in force."""

    __tablename__ = "leases"
    __table_args__ = (
        UniqueConstraint("node", "token"),
        Index("uq_leases_node_live", "node", unique=True,
              sqlite_where=text("released_at IS NULL"), postgresql_where=text("released_at IS NULL")),
        Index("ix_leases_dag_id_run_id", "dag_id", "run_id"),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"))
    dag_id: Mapped[str]
    run_id: Mapped[str]
    token: Mapped[int] = mapped_column(BigInteger)
    acquired_at: Mapped[datetime.datetime]
    released_at: Mapped[datetime.datetime | None]


class RunRow(OfRun, Base):
    """What one DAG run did with one node, by ``machine`` its first, second … of that name; a run that tests a block of
    nodes has a row for each.

    ``why_held``: why the circuit breaker kept its verdict from withdrawing the node, "" if it did not. ``started_by``:
    the login that started it in Airflow or over REST, "" if a program did. ``faults``: {stage: why the controller could
    not do its part in the stage's last attempt}. ``spent``: {stage: [max_tries of its task, attempts at the node that
    ended without a verdict]}. ``ended_place``: the last stage (``StageRow.id``) of its node that was
    recorded when it ended, which says what ended last. ``block``: of a member of a block, how its members meet.
    ``run_after``: Airflow's, which a Clear keeps and another run of the same id does not; None if not known.
    ``reported_at``: when the report of its verdict was queued for all who get it; None while it was not.
    """

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("dag_id", "run_id", "node"),
        Index("ix_runs_node_machine", "node", "machine"),
        Index("ix_runs_node_ended_at", "node", "ended_at"),
        Index("ix_runs_node_ended_place", "node", "ended_place", "id"),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    dag_id: Mapped[str]
    run_id: Mapped[str]
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"))
    machine: Mapped[int]
    sku: Mapped[str]
    level: Mapped[str]
    reason: Mapped[str]
    forced: Mapped[str | None]
    started_by: Mapped[str] = mapped_column(default="")
    required_stages: Mapped[list[Any]]
    state_before: Mapped[str]
    state_after: Mapped[str | None]
    verdict: Mapped[str | None]
    headline: Mapped[str] = mapped_column(default="")
    why_held: Mapped[str] = mapped_column(default="")
    simulated: Mapped[bool]
    identity: Mapped[dict[str, Any]] = mapped_column(default=dict)
    environment: Mapped[dict[str, Any]] = mapped_column(default=dict)
    faults: Mapped[dict[str, Any]] = mapped_column(default=dict)
    spent: Mapped[dict[str, Any]] = mapped_column(default=dict)
    block: Mapped[dict[str, Any]] = mapped_column(default=dict)
    run_after: Mapped[datetime.datetime | None]
    started_at: Mapped[datetime.datetime] = mapped_column(index=True)
    ended_at: Mapped[datetime.datetime | None] = mapped_column(index=True)
    ended_place: Mapped[int] = mapped_column(BigInteger, default=0)
    reported_at: Mapped[datetime.datetime | None]


class JobRow(Base):
    """One detached job on a node: one attempt at a stage of a run; a user's Clear makes a new ``attempt_key``.

    ``chassis``: the BMC's readings before it, as written by ``muster_criteria.chassis.Chassis``; empty without a BMC.
    ``work``: digest of what its probes do. ``repeat_probes``: those to run again after it, before the stage is judged.
    """

    __tablename__ = "jobs"
    __table_args__ = (UniqueConstraint("run", "stage", "attempt_key"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    run: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    stage: Mapped[str]
    attempt_key: Mapped[str]
    state: Mapped[str]
    remote_dir: Mapped[str]
    boot_id: Mapped[str]
    fence: Mapped[int] = mapped_column(BigInteger)
    started_at: Mapped[datetime.datetime | None]
    ended_at: Mapped[datetime.datetime | None]
    note: Mapped[str]
    chassis: Mapped[str] = mapped_column(default="")
    work: Mapped[str] = mapped_column(default="")
    repeat_probes: Mapped[list[Any]] = mapped_column(default=list)


_CURRENT: dict[str, Any] = {"sqlite_where": text("current = 1"), "postgresql_where": text("current")}
"""The condition for current rows in each dialect's wording, for which alone it uses the partial indexes."""


class StageRow(Base):
    """The verdict of one stage of a run, with its coverage. Repeating a stage supersedes this row, never erases it.

    ``sku_version`` and ``snapshot`` are the SKU files' revision and the peer statistics it was judged by; the
    latter is empty without peers. ``node`` and ``machine`` are the run's, copied here for an index that finds a node's
    verdicts at the same cost whatever its age. ``origin``: the id of the first row with this result, which is its place
    in the order of tests: a later verdict on the same result is not a newer test. ``charts``: hundreds of kilobytes,
    which only a report reads. ``environment``: what the node had reported in the run by then.
    """

    __tablename__ = "stages"
    __table_args__ = (
        Index("uq_stages_run_stage_current", "run", "stage", unique=True, **_CURRENT),
        Index("ix_stages_of_machine", "node", "machine", "stage", "level", "verdict", "id", **_CURRENT),
        Index("ix_stages_in_order", "node", "machine", "stage", "origin", **_CURRENT),
        Index("ix_stages_node", "node", "id"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    run: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"))
    machine: Mapped[int]
    stage: Mapped[str]
    level: Mapped[str]
    current: Mapped[bool]
    verdict: Mapped[str]
    reason: Mapped[str]
    required: Mapped[int]
    measured: Mapped[int]
    judged: Mapped[int]
    missing: Mapped[list[Any]]
    unjudged: Mapped[list[Any]]
    sku: Mapped[str]
    sku_version: Mapped[str]
    simulated: Mapped[bool]
    notes: Mapped[list[Any]]
    attempts: Mapped[int]
    recorded_at: Mapped[datetime.datetime] = mapped_column(index=True)
    started_at: Mapped[datetime.datetime | None]
    ended_at: Mapped[datetime.datetime | None]
    job_end: Mapped[str]
    agent_sha256: Mapped[str]
    probes: Mapped[list[Any]]
    environment: Mapped[dict[str, Any]] = mapped_column(default=dict)
    charts: Mapped[list[Any]] = mapped_column(deferred=True)
    result_sha256: Mapped[str]
    snapshot: Mapped[str] = mapped_column(default="", index=True)
    origin: Mapped[int] = mapped_column(BigInteger, default=0)


class MeasurementRow(Base):
    """One measured figure of a stage, with the limits it was judged by (``judged`` is its place in the judgement)."""

    __tablename__ = "measurements"
    __table_args__ = (Index("ix_measurements_stage_metric", "stage", "metric"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    stage: Mapped[int] = mapped_column(ForeignKey("stages.id", ondelete="CASCADE"))
    probe: Mapped[str]
    metric: Mapped[str]
    device: Mapped[str]
    unit: Mapped[str]
    value: Mapped[float | None]
    text: Mapped[str | None]
    labels: Mapped[dict[str, Any]]
    samples: Mapped[int] = mapped_column(BigInteger)
    spread: Mapped[float | None]
    note: Mapped[str]
    judged: Mapped[int | None]
    floor: Mapped[float | None]
    ceiling: Mapped[float | None]
    source: Mapped[str]
    ok: Mapped[bool | None]


class FindingRow(Base):
    """Which measurement broke which rule. ``waived``: the waiver that was valid when it was judged, "" without one.

    ``measurements`` are references to the figures behind it, as ``Finding.measurements`` has them. ``extent``: the
    fields of ``Finding.extent``, none where it has none.
    """

    __tablename__ = "findings"

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    stage: Mapped[int] = mapped_column(ForeignKey("stages.id", ondelete="CASCADE"), index=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), index=True)
    rule: Mapped[str]
    metric: Mapped[str]
    device: Mapped[str]
    severity: Mapped[str]
    fault_class: Mapped[str]
    action: Mapped[str]
    observed: Mapped[str]
    expected: Mapped[str]
    source: Mapped[str]
    summary: Mapped[str]
    labels: Mapped[dict[str, Any]]
    confidence: Mapped[float]
    finding_id: Mapped[str] = mapped_column(index=True)
    waived: Mapped[str] = mapped_column(default="")
    measurements: Mapped[list[Any]] = mapped_column(default=list)
    variant: Mapped[str] = mapped_column(default="")
    extent: Mapped[dict[str, Any]] = mapped_column(default=dict)


class EventRow(Base):
    """One step in a node's life, or a remark about it (then both states are the same). Append-only.

    ``actor``: the name that a person gave, or the program. ``login``: the authenticated login (``muster.acting``).
    ``node``: None, and both states "", for a decision that concerns no node. ``after``: of a move, the node's last
    stage (``StageRow.id``) by then, which says what had been found.
    """

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_moves", "node", "id",
              sqlite_where=text("from_state != to_state"), postgresql_where=text("from_state != to_state")),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), index=True, nullable=True)
    at: Mapped[datetime.datetime] = mapped_column(index=True)
    from_state: Mapped[str]
    to_state: Mapped[str]
    actor: Mapped[str]
    login: Mapped[str] = mapped_column(default="")
    reason: Mapped[str]
    evidence: Mapped[dict[str, Any]]
    after: Mapped[int] = mapped_column(BigInteger, default=0)


class SnapshotRow(Base):
    """What the healthy devices of one SKU, real or simulated, were like at one level; never changed afterwards."""

    __tablename__ = "peer_snapshots"
    __table_args__ = (UniqueConstraint("sku", "level", "simulated", "version"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    version: Mapped[str]
    made_at: Mapped[datetime.datetime]
    sku: Mapped[str]
    level: Mapped[str]
    simulated: Mapped[bool]
    nodes: Mapped[int]
    data: Mapped[bytes] = mapped_column(deferred=True)


class RevisionRow(Base):
    """The contents of a SKU's files that a verdict cites, as JSON of ``muster_criteria.sku_files.skus.Sku``."""

    __tablename__ = "sku_revisions"

    sku: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[str] = mapped_column(primary_key=True)
    kept_at: Mapped[datetime.datetime]
    content: Mapped[str] = mapped_column(deferred=True)


class ArtifactRow(Base):
    """Bytes as they came from a node, kept until retention takes them: a stage's raw result or its telemetry file."""

    __tablename__ = "artifacts"
    __table_args__ = (UniqueConstraint("stage", "kind"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    stage: Mapped[int] = mapped_column(ForeignKey("stages.id", ondelete="CASCADE"))
    kind: Mapped[str]
    created_at: Mapped[datetime.datetime] = mapped_column(index=True)
    data: Mapped[bytes] = mapped_column(deferred=True)


for _table in Base.metadata.tables.values():
    # Ids order and name rows for good: SQLite must not reuse the id of a deleted row, as PostgreSQL does not either.
    _table.dialect_options["sqlite"]["autoincrement"] = "id" in _table.c and isinstance(_table.c.id.type, BigInteger)
Base.registry.configure()  # rather than at the first query: task processes are forked from one that has imported this
