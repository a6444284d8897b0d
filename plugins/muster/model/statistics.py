"""What is kept of the fleet's measurements: peer statistics, goldens, device events, reports."""

from __future__ import annotations

import dataclasses
import datetime

from muster.model.runs import OfRun
from muster_criteria.device_events.policy import DeviceEvent


@dataclasses.dataclass(frozen=True)
class KeptSnapshot:
    """Peer statistics that are kept: of so many healthy nodes of one SKU, real or simulated, tested at one level."""

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
class RecordedEvent(OfRun):
    """One device event as a stage of a run reported it. ``part``: the GPU's serial where known, else its PCI address.

    ``former``: reported by an earlier machine of that name. ``during``: logged in that stage, not before it.
    ``repairs``: how often a person had repaired the node, or had it repaired, by then.
    """

    node: str
    sku: str
    dag_id: str
    run_id: str
    stage: str
    verdict: str
    boot_id: str
    part: str
    seen_at: datetime.datetime
    event: DeviceEvent
    former: bool = False
    during: bool = True
    repairs: int = 0


@dataclasses.dataclass(frozen=True)
class Urgent:
    """The latest observation of a node after which a whole test is due: when it came, and after which stage of the
    node, since clocks may err.
    """

    why: str
    at: datetime.datetime
    after: int
