"""The health policy: what follows from an observation between tests. One versioned table, read strictly.

Pure: an observation and a policy give an action. A table that contradicts itself is refused with one sentence.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from muster_criteria.device_events.policy import EventSeverity
from muster_criteria.policy_file import Table
from muster_criteria.written import Written

DEFAULT = "health"
WITHIN_S_MAX = 86400.0
"""Longest window (s): older sightings are not stored separately."""

Check = Annotated[str, Field(pattern=r"^[a-z0-9*][A-Za-z0-9_.:/*-]{0,79}$")]
Text = Annotated[str, Field(min_length=3)]


class HealthAction(enum.StrEnum):
    """What follows, mildest first."""

    NOTE = "note"
    TEST_SOONER = "test_sooner"
    LEAVE_WHEN_JOB_ENDS = "leave_when_job_ends"
    AT_ONCE = "at_once"

    @property
    def rank(self) -> int:
        """0 for the mildest."""
        return list(HealthAction).index(self)

    @property
    def leaves(self) -> bool:
        """Whether the node leaves service."""
        return self.rank >= HealthAction.LEAVE_WHEN_JOB_ENDS.rank


class Entry(Written):
    """The action for some checks, by patterns with ``*``. The first entry counts whose conditions all hold.

    ``severity``: as the policy of its kind classes the event. ``at_least``: how often it was seen, ``within_s``: in so
    many seconds (0: since it was seen first);
    ``bad_for_s``: for how long in all a state was bad; ``flaps``: how often it returned; ``per_hour``: events an hour.
    ``corrupts``: results of jobs may be wrong; ``at_once`` is for these alone.
    """

    checks: Annotated[tuple[Check, ...], Field(min_length=1)]
    severity: tuple[EventSeverity, ...] = ()
    at_least: Annotated[int, Field(ge=1)] = 1
    within_s: Annotated[float, Field(ge=0, le=WITHIN_S_MAX)] = 0.0
    bad_for_s: Annotated[float, Field(ge=0)] = 0.0
    flaps: Annotated[int, Field(ge=0)] = 0
    per_hour: Annotated[float, Field(ge=0)] = 0.0
    action: HealthAction
    corrupts: bool = False
    source: str
    why: str = ""

    @model_validator(mode="after")
    def _some_within(self) -> Entry:
        if self.within_s and self.at_least < 2:
            raise ValueError(f"{self.checks[0]} has within_s without at_least: once is within any time")
        return self

    @model_validator(mode="after")
    def _only_what_corrupts(self) -> Entry:
        if self.action is HealthAction.AT_ONCE and not self.corrupts:
            raise ValueError(f"{self.checks[0]} has at_once, and does not say that it corrupts: at_once ends jobs")
        return self

    def knows(self, check: str) -> bool:
        """Whether it is about this check."""
        return any(fnmatch.fnmatchcase(check, each) for each in self.checks)

    def covers(self, other: Entry) -> bool:
        """Whether every observation for which ``other`` counts meets this entry too."""
        return (
            all(any(fnmatch.fnmatchcase(narrow, wide) for wide in self.checks) for narrow in other.checks)
            and (not self.severity or (bool(other.severity) and set(other.severity) <= set(self.severity)))
            and self.at_least <= other.at_least
            and (not self.within_s or 0 < other.within_s <= self.within_s)
            and self.bad_for_s <= other.bad_for_s
            and self.flaps <= other.flaps
            and self.per_hour <= other.per_hour
        )


class Group(Written):
    """Nodes whose label ``label`` is ``value``. ``watch``: whatever is observed is noted, and nothing else follows.

    ``repair``: as ``quarantine``, and a node that left service for a fault that the repair policy knows is repaired, as
    far as that policy switches it on.
    """

    label: Annotated[str, Field(min_length=1)]
    value: str
    mode: Literal["watch", "quarantine", "repair"]


class Place(Written):
    """When an observation is its place's fault: at least ``nodes`` nodes, and ``share`` of the place, show it at once.

    ``within_s``: "at once" (s); ``checks``: what a place can cause; ``labels``: labels that name places, and "rack".
    """

    share: Annotated[float, Field(gt=0, le=1)]
    nodes: Annotated[int, Field(ge=2)]
    within_s: Annotated[float, Field(gt=0)]
    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    checks: Annotated[tuple[Check, ...], Field(min_length=1)]


class Bmcs(Written):
    """How BMCs are read, separately from the nodes. ``every_s``: interval for one BMC, 0: never; ``limit_s``: for one
    reading; ``together``: how many at once; ``pass_s``: for all; those that are left come first in the next pass.

    ``inlet_c``: °C above which incoming air is hot, as in the shipped SKU files (docs/science.md).
    """

    every_s: Annotated[float, Field(ge=0)] = 3600.0
    limit_s: Annotated[float, Field(gt=0, le=300)] = 120.0
    together: Annotated[int, Field(ge=1, le=256)] = 32
    pass_s: Annotated[float, Field(gt=0, le=1200)] = 300.0
    inlet_c: Annotated[float, Field(gt=0, lt=100)] = 32.0


class HealthPolicy(Table):
    """The table. ``bring_up_s``: time after a boot in which a bad state does not count. ``stable_s``: how long a state
    has to stay good before it is over. ``mode``: of nodes that no group names.
    """

    MARK = "stable_s"

    bring_up_s: Annotated[float, Field(ge=0)]
    stable_s: Annotated[float, Field(gt=0)]
    mode: Literal["watch", "quarantine"] = "quarantine"
    place: Place
    bmc: Bmcs = Bmcs()
    groups: tuple[Group, ...] = ()
    entries: tuple[Entry, ...]

    @model_validator(mode="after")
    def _whole(self) -> HealthPolicy:
        self.check_sources(each.source for each in self.entries)
        modes: dict[tuple[str, str], str] = {}
        for group in self.groups:
            key = group.label, group.value
            if modes.setdefault(key, group.mode) != group.mode:
                raise ValueError(f"nodes with {group.label}={group.value} are in groups of two modes")
        for number, later in enumerate(self.entries):
            for earlier in self.entries[:number]:
                if earlier.covers(later):
                    raise ValueError(
                        f"the entry of {', '.join(later.checks)} with {later.action} never counts: "
                        f"that of {', '.join(earlier.checks)} with {earlier.action} comes before it"
                    )
        return self

    def mode_of(self, labels: Mapping[str, str]) -> str:
        """How nodes with these labels are treated; the mildest wins where two groups name a node."""
        modes = {each.mode for each in self.groups if labels.get(each.label) == each.value}
        return next((each for each in ("watch", "quarantine", "repair") if each in modes), self.mode)

    def may_corrupt(self, check: str) -> bool:
        """Whether some observations of a check say that results may be wrong."""
        return any(each.corrupts and each.knows(check) for each in self.entries)

    def is_place(self, check: str) -> bool:
        """Whether a check is one that a place may cause."""
        return any(fnmatch.fnmatchcase(check, each) for each in self.place.checks)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a decision on one observation is based on. ``bad_for_s``, ``flaps``: of a state. ``recent``: the latest of
    ``count``, as (seconds ago, how often).
    """

    check: str
    severity: str = ""
    count: int = 1
    bad_for_s: float = 0.0
    flaps: int = 0
    rate: float | None = None
    recent: tuple[tuple[float, int], ...] = ()

    def seen_within(self, seconds: float) -> int:
        """How often it was seen in the last ``seconds``; if 0, in all."""
        return sum(times for ago, times in self.recent if ago <= seconds) if seconds else self.count


def entry_for(facts: Facts, policy: HealthPolicy) -> Entry | None:
    """The entry that counts; None if none does, and the observation is only noted."""
    return next((each for each in policy.entries if _meets(facts, each)), None)


def action_on(facts: Facts, policy: HealthPolicy, mode: str = "quarantine") -> HealthAction:
    """The policy's decision on one observation of a node that is treated by ``mode``."""
    entry = entry_for(facts, policy)
    return HealthAction.NOTE if entry is None or mode == "watch" else entry.action


def _meets(facts: Facts, entry: Entry) -> bool:
    return (
        entry.knows(facts.check)
        and (not entry.severity or facts.severity in entry.severity)
        and facts.seen_within(entry.within_s) >= entry.at_least
        and facts.bad_for_s >= entry.bad_for_s
        and facts.flaps >= entry.flaps
        and (entry.per_hour == 0 or (facts.rate is not None and facts.rate >= entry.per_hour))
    )
