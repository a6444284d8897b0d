"""``one_of``: an item of the inventory is one of several texts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from muster_criteria.kinds.kind import Row, Set
from muster_criteria.kinds.texts import OfText
from muster_criteria.written import as_tuple


class OneOf(OfText):
    """See the module."""

    def allows(self, limit: Set, text: str) -> bool:
        return text in limit.value

    def expected(self, limit: Set, at: float, row: Row) -> str:
        return f"one of {', '.join(limit.value)}"


KIND = OneOf(key="one_of", given=Annotated[tuple[str, ...], BeforeValidator(as_tuple)], rank=8)
