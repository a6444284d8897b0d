"""Incidents and the attempts to repair them, as the records keep them."""

from __future__ import annotations

import dataclasses
import datetime
import enum

from muster.model.runs import RunKey


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is to be repaired: a class of the repair policy, the device, and its part ("gpu SERIAL") where known."""

    fault_class: str
    device: str = ""
    part: str = ""

    def same(self, other: Fault) -> bool:
        """Whether both are of one class and device, whatever part sits there."""
        return (self.fault_class, self.device) == (other.fault_class, other.device)


NOTHING_READ = "node: nothing was read from the node"
"""Stands in ``missing`` of a bundle that should hold pieces of its node and has none."""


@dataclasses.dataclass(frozen=True)
class Bundle:
    """An incident's evidence: one archive. ``missing``: "NAME: why" of each piece that it lacks."""

    path: str
    sha256: str
    bytes: int
    missing: tuple[str, ...] = ()

    @property
    def blank(self) -> bool:
        """Whether the node was to be read and nothing was."""
        return NOTHING_READ in self.missing


@dataclasses.dataclass(frozen=True)
class Incident:
    """One fault of one machine, from when it is seen until a repair is proved or a person closes it. It follows the
    part: ``node`` is where that sits.

    ``bundle``: None until evidence was taken. ``prove``: the stages that have to pass, at ``level`` at least, before a
    repair counts; empty for evidence that was taken by hand. ``asks``: why a person has to decide what is done next, ""
    while the repairs go on by themselves. ``waits``: why the next repair does not begin yet, as of ``waits_at``. Both
    are set if each sweep checks whether the cause of the question has ended.
    """

    id: int
    node: str
    fault: Fault
    why: str
    opened_at: datetime.datetime
    simulated: bool
    prove: tuple[str, ...] = ()
    level: str = ""
    bundle: Bundle | None = None
    closed_at: datetime.datetime | None = None
    asks: str = ""
    waits: str = ""
    waits_at: datetime.datetime | None = None

    @property
    def stopped(self) -> bool:
        """Whether it is not repaired before a person takes it up again."""
        return bool(self.asks) and not self.waits


class Outcome(enum.StrEnum):
    """How an attempt ended. ``TRANSIENT``: certainly not carried out; whatever is unclear is ``PERMANENT``."""

    SUCCEEDED = "succeeded"
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One repair that was reserved before it was carried out. ``outcome``: None while it is not known.

    ``proved``: whether the tests that can see the fault passed after it; None before they ended, and if the attempt did
    not succeed or the part was replaced, since they then prove nothing about it. ``days``: on how many days stages of
    tests were recorded since, of any node; a clock that jumps adds none. ``ordered``: how a restart was ordered, from
    the boot ``before`` on, at ``ordered_at``; None if none was.
    """

    id: int
    incident: int
    node: str
    fault: Fault
    rung: str
    reserved_at: datetime.datetime
    run: RunKey | None = None
    outcome: Outcome | None = None
    detail: str = ""
    ended_at: datetime.datetime | None = None
    proved: bool | None = None
    days: int = 0
    before: str = ""
    ordered: str = ""
    ordered_at: datetime.datetime | None = None
