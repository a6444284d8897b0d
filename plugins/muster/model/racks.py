"""A rack that is one NVLink domain and needs a person."""

from __future__ import annotations

import dataclasses
import datetime
import shlex

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

    @property
    def sentence(self) -> str:
        """Since when it is held, why, and how that ends."""
        return (
            f"rack {self.rack}{' (simulated)' if self.simulated else ''} is held since {self.since:%Y-%m-%d %H:%M} UTC "
            f"({self.why}): when that is repaired, `muster racks release {shlex.quote(self.rack)} --reason …`"
        )
