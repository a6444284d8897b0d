"""What is kept of the fleet's measurements: peer statistics, goldens, urgent observations."""

from __future__ import annotations

import dataclasses
import datetime


@dataclasses.dataclass(frozen=True)
class KeptSnapshot:
    """Stored peer statistics of ``nodes`` healthy nodes of one SKU, real or simulated, tested at one level."""

    version: str
    made_at: datetime.datetime
    sku: str
    level: str
    simulated: bool
    nodes: int


@dataclasses.dataclass(frozen=True)
class KeptGolden:
    """One key and operation: its golden, or why there is none, or why it was withdrawn."""

    id: str
    op: str
    key: str
    simulated: bool
    digest: str
    devices: int
    nodes: int
    why_not: str = ""
    promoted_at: datetime.datetime | None = None
    agreed: tuple[str, ...] = ()
    withdrawn_at: datetime.datetime | None = None
    withdrawn_by: str = ""
    withdrawn_login: str = ""
    withdrawn_reason: str = ""


@dataclasses.dataclass(frozen=True)
class Urgent:
    """The latest observation of a node that makes a whole test due: when it came, and after which stage of the node,
    since clocks may be wrong.
    """

    why: str
    at: datetime.datetime
    after: int
