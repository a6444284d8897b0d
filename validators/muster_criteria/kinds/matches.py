"""``matches``: an item of the inventory matches a regular expression."""

from __future__ import annotations

import re

from muster_criteria.kinds.kind import Row, Set
from muster_criteria.kinds.texts import OfText
from muster_criteria.written import Pattern


class Matches(OfText):
    """See the module."""

    def allows(self, limit: Set, text: str) -> bool:
        return re.search(limit.value, text) is not None

    def expected(self, limit: Set, at: float, row: Row) -> str:
        return f"a text that matches {limit.value}"


KIND = Matches(key="matches", given=Pattern, rank=9)
