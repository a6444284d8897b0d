"""``exactly``: what must be an exact number, such as a count of mismatches."""

from __future__ import annotations

from typing import ClassVar

from muster_criteria.kinds.kind import LimitKind


class Exactly(LimitKind):
    """See the module."""

    key: ClassVar[str] = "exactly"
    claim: ClassVar[str] = "What must be an exact number is that number"
    rank: ClassVar[int] = 10


KIND = Exactly()
