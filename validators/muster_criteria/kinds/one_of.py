"""``one_of``: an item of the inventory is one of several texts."""

from __future__ import annotations

from muster_criteria.kinds.kind import Row, Set
from muster_criteria.kinds.texts import OfText


class OneOf(OfText):
    """See the module."""

    def allows(self, limit: Set, text: str) -> bool:
        return text in limit.value

    def expected(self, limit: Set, at: float, row: Row) -> str:
        return f"one of {', '.join(limit.value)}"


KIND = OneOf(key="one_of", given=tuple[str, ...], rank=8)
