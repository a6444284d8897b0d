"""Parts with a serial, and where they sat."""

from __future__ import annotations

import dataclasses
import datetime


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a part sat; ``until`` is None while it sits there."""

    kind: str
    serial: str
    node: str
    slot: str
    since: datetime.datetime
    until: datetime.datetime | None
