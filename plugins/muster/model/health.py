"""Health of nodes between tests: what was observed, in one form for all sources."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from muster_criteria.health.bmc import NOTHING_KNOWN, Known
from muster_criteria.health.policy import HealthAction
from muster_criteria.health.readings import Reading

SWEEP = "sweep"
"""The source of readings by the controller's own sweep."""
BMC = "bmc"
"""The source of the controller's readings of BMCs."""

ACTOR = "health"
"""The actor of the events that observations write into a node's history."""

OF_PLACE = "a person was notified of its place"
"""What was done for an event that its place explains, until it is seen again."""


def cited(observation: int) -> str:
    """How the event with which a node left service cites the observation that caused it."""
    return f"health/{observation}"


def observation_of(evidence: Mapping[str, Any]) -> int | None:
    """The observation that an event's evidence cites, None if it cites none."""
    kind, _, number = str(evidence.get("observed", "")).partition("/")
    return int(number) if kind == "health" and number.isdecimal() else None


@dataclasses.dataclass(frozen=True)
class Track:
    """The course of a state that was bad. ``since``: when it last became good or bad; ``at``: when it was last read.

    ``down_s``: seconds for which it was bad, all times added; ``flaps``: how often it went bad again before it had been
    good for the stable time. ``over``: it has been good for that time since its recovery.
    """

    bad: bool
    since: datetime.datetime
    at: datetime.datetime
    down_s: float = 0.0
    flaps: int = 0
    over: bool = False


@dataclasses.dataclass(frozen=True)
class Observation:
    """What one source saw of one check of one part in one boot of a node: ``count`` readings are one observation.

    ``part``: "gpu SERIAL", or the device where no serial is known. ``boot_id``: "" if the source does not give it.
    ``track``: of a state, None for an event. ``action``: what the policy says; ``acted``: what was done for it, "" for
    nothing yet. ``most``: the gravest action that its source may cause. ``recent``: of the last day and whatever boot,
    (when, in seconds since 1970, how often), as ``muster.rules.service.health.remember`` keeps it.
    """

    id: int
    node: str
    part: str
    device: str
    check: str
    value: str
    first_seen: datetime.datetime
    last_seen: datetime.datetime
    count: int
    boot_id: str
    source: str
    severity: str
    rate: float | None
    action: HealthAction
    track: Track | None
    most: HealthAction
    acted: str
    recent: tuple[tuple[float, int], ...] = ()

    @property
    def over(self) -> bool:
        """Whether it needs nothing any more: a state that has been good for the stable time."""
        return self.track is not None and self.track.over

    @property
    def sentence(self) -> str:
        """As pages, the history and the plan show it."""
        times = f", {self.count} times" if self.count > 1 else ""
        where = "" if self.part in ("node", "") else f" of {self.part}"
        return f"{self.check}{where}{f': {self.value}' if self.value else ''}{times} ({self.source})"


@dataclasses.dataclass(frozen=True)
class Report:
    """What one source says of one node at once. ``boot_id``: "" if it gives none; ``most``: see ``Observation``.

    ``uptime_s``: seconds since the node's boot, None where unknown. ``cursor``: where the sweep that read it ended;
    ``bmc``: where a reading of its BMC ended.
    """

    node: str
    source: str
    seen: tuple[Reading, ...]
    boot_id: str = ""
    most: HealthAction = HealthAction.AT_ONCE
    uptime_s: float | None = None
    cursor: Cursor | None = None
    bmc: BmcCursor | None = None


@dataclasses.dataclass(frozen=True)
class Cursor:
    """Where the last sweep of a node ended. ``kernel_s``: seconds since boot of the last line of the kernel log.

    ``counters``: "check device" → value of the cumulative counters; ``swept_at``: None if it never answered.
    """

    node: str
    boot_id: str = ""
    kernel_s: float = 0.0
    counters: dict[str, float] = dataclasses.field(default_factory=dict)
    swept_at: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True)
class BmcCursor:
    """Where the last reading of a node's BMC ended. ``tried_at``: when it was last asked; ``read_at``: when it last
    gave all that was asked, None for never; ``known``: what its readings left.
    """

    node: str
    known: Known = NOTHING_KNOWN
    tried_at: datetime.datetime | None = None
    read_at: datetime.datetime | None = None
