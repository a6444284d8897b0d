"""A pause: a person keeps all tests away from a node until a day."""

from __future__ import annotations

import dataclasses
import datetime


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
