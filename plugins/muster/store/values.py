"""The values that the fleet records take and return: frozen, never database objects."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping
from typing import Any

from muster.rules.pause import Pause
from muster.rules.transitions import State
from muster_criteria.model import Finding, Verdict

NODE_NAME = re.compile(r"(?!.*__)[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""A node's name becomes part of run ids and paths; "__" separates node and reason in a run id."""

HOST_KEY = re.compile(r"(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/]{40,}={0,3}")
"""An SSH host key as "TYPE BASE64"."""


@dataclasses.dataclass(frozen=True)
class NewNode:
    """A machine to enrol.

    ``host_key`` is "type base64", as in known_hosts. ``user`` empty means the SSH connection's. ``launch``: how
    the node side is started ({"kind": "host", …}; empty: the host's python). ``serials`` {slot: serial}, where known.
    ``bmc``: as ``muster.remote.bmc.Bmc`` has it, so without secrets; empty: none is known.
    """

    name: str
    host: str
    host_key: str
    sku: str
    port: int = 22
    user: str = ""
    launch: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    work_dir: str = "~/.muster"
    rack: str = ""
    pool: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    simulated: bool = False
    serials: Mapping[str, str] = dataclasses.field(default_factory=dict)
    bmc: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    named: frozenset[str] | None = None
    """The fields that the description names; those of a known node that it does not name stay. None: it names all."""


@dataclasses.dataclass(frozen=True)
class NodeRecord:
    """An enrolled machine, its state and its last contact. ``pool`` empty means the DAG's default.

    ``machine_since``: since when this machine has the name. ``shadow``: adopted while it served, judged and reported,
    but never drained. ``held_run``: "dag_id/run_id" of a run whose verdict would have withdrawn it, had the
    circuit breaker not been open; until a person or another test decides, it serves. ``pause``: that of its tests,
    while it lasts.
    """

    name: str
    host: str
    port: int
    user: str
    host_key: str
    sku: str
    state: State
    launch: Mapping[str, Any]
    work_dir: str
    rack: str
    pool: str
    labels: Mapping[str, str]
    simulated: bool
    added_at: datetime.datetime
    contact_at: datetime.datetime | None = None
    inconclusive: int = 0
    machine_since: datetime.datetime | None = None
    shadow: bool = False
    held_run: str = ""
    bmc: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pause: Pause | None = None


@dataclasses.dataclass(frozen=True)
class LeaseRecord:
    """A node leased by a run; ``token`` is the fencing token that goes to the node."""

    node: str
    dag_id: str
    run_id: str
    token: int
    acquired_at: datetime.datetime


@dataclasses.dataclass(frozen=True)
class RunRecord:
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
class JobRecord:
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


@dataclasses.dataclass(frozen=True)
class SnapshotRecord:
    """Peer statistics that are kept: of so many healthy nodes of one SKU, real or simulated, tested at one level."""

    version: str
    made_at: datetime.datetime
    sku: str
    level: str
    simulated: bool
    nodes: int


@dataclasses.dataclass(frozen=True)
class ApprovalRecord:
    """A person's decision about a node, the reason, a link to the evidence, and the login it was made under."""

    node: str
    at: datetime.datetime
    person: str
    option: str
    reason: str
    link: str
    run: str
    login: str = ""


@dataclasses.dataclass(frozen=True)
class EventRecord:
    """One step of a node's life; ``from_state`` equals ``to_state`` in a remark. ``login``: see ``muster.acting``."""

    node: str
    at: datetime.datetime
    from_state: State
    to_state: State
    actor: str
    reason: str
    evidence: Mapping[str, Any]
    login: str = ""


@dataclasses.dataclass(frozen=True)
class PlacementRecord:
    """Where a part sat; ``until`` is None while it sits there."""

    kind: str
    serial: str
    node: str
    slot: str
    since: datetime.datetime
    until: datetime.datetime | None


@dataclasses.dataclass(frozen=True)
class OutboxMessage:
    """A mail waiting to be sent, without its bytes. ``recipients``: those left after a refusal of some; (): all."""

    id: int
    key: str
    created_at: datetime.datetime
    attempts: int
    last_error: str
    retry_at: datetime.datetime | None
    recipients: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ParkedMail:
    """A mail that the mail server refused for good, and why. ``recipients``: as in ``OutboxMessage``."""

    key: str
    parked_at: datetime.datetime
    last_error: str
    recipients: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Purged:
    """How many rows of each kind retention deleted."""

    telemetry: int
    results: int
    measurements: int
    runs: int
    mails: int
    snapshots: int = 0
    digests: int = 0
    suspects: int = 0
    parts: int = 0
    events: int = 0
