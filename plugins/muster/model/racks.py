"""A rack that is one NVLink domain and needs a person."""

from __future__ import annotations

import dataclasses
import datetime

from muster.model.runs import RunKey


@dataclasses.dataclass(frozen=True)
class HeldRack:
    """``codes`` and ``why``: what a block (``found_by``) found; ``nodes``: those of the rack that were in the block."""

    rack: str
    codes: tuple[str, ...]
    why: str
    nodes: tuple[str, ...]
    found_by: RunKey
    since: datetime.datetime
    simulated: bool = False
