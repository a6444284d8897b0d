"""A failure in service: which node left it, for what kind of fault, and when it came back."""

from __future__ import annotations

import dataclasses
import datetime


@dataclasses.dataclass(frozen=True)
class Failure:
    """``group``: the group of defects, from ``muster.rules.idle.history.GROUPS``. ``back``: when the node served again,
    None while it does not. ``replaced``: whether the part that failed had been replaced by then. ``gone``: when the
    node was retired instead of coming back, None if it was not.
    """

    node: str
    group: str
    at: datetime.datetime
    back: datetime.datetime | None = None
    replaced: bool = False
    gone: datetime.datetime | None = None

    @property
    def over(self) -> datetime.datetime | None:
        """When the node came back or was retired, None while it is broken."""
        return self.back or self.gone
