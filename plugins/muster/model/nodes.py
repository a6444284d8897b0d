"""A machine under its name: as it is enrolled, as it is recorded, leased, and kept from tests."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from muster.model.runs import OfRun, RunKey
from muster.model.states import State


@dataclasses.dataclass(frozen=True)
class NewNode:
    """A machine to enrol.

    ``host_key`` is "type base64", as in known_hosts. ``user`` empty means the SSH connection's. ``launch``: how the
    node side is started ({"kind": "host", …}; empty: the host's python). ``serials`` {slot: serial}, where known.
    ``bmc``: as ``muster.remote.bmc.bmc`` has it, so without secrets; empty: none is known. ``named``: the fields that
    the description names; those of a known node that it does not name stay. None: it names all.
    ``adds_labels``: a known node keeps its other labels, and one with an empty text is removed.
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
    adds_labels: bool = False


@dataclasses.dataclass(frozen=True)
class Pause:
    """Who paused the tests of a node, until when, and why. ``str``: that, as a clause about its tests."""

    person: str
    until: datetime.datetime
    reason: str

    @property
    def last_day(self) -> datetime.date:
        """The last day (UTC) of the pause."""
        return (self.until - datetime.timedelta.resolution).date()

    def __str__(self) -> str:
        return f"paused by {self.person} until {self.last_day} (UTC): {self.reason}"


@dataclasses.dataclass(frozen=True)
class Lemon:
    """Who marked a node as failing again and again, since when, and why. ``str``: that, as a clause about it."""

    person: str
    since: datetime.datetime
    reason: str

    def __str__(self) -> str:
        return f"marked as a lemon by {self.person} on {self.since:%Y-%m-%d}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Node:
    """An enrolled machine, its state and its last contact. ``pool`` empty means the DAG's default.

    ``machine_since``: since when this machine has the name. ``shadow``: adopted while it served, judged and reported,
    but never drained. ``held_run``: the run whose verdict the circuit breaker or a common cause keeps from withdrawing
    it; until a person or another test decides, it serves. ``pause``: that of its tests, while it lasts. ``lemon``: a
    person's mark that it fails again and again. ``spell``: how often the name has entered service, or was verified.
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
    held_run: RunKey | None = None
    bmc: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pause: Pause | None = None
    lemon: Lemon | None = None
    spell: int = 0


@dataclasses.dataclass(frozen=True)
class Lease(OfRun):
    """A node leased by a run; ``token`` is the fencing token that goes to the node."""

    node: str
    dag_id: str
    run_id: str
    token: int
    acquired_at: datetime.datetime
