"""``matches``: an item of the inventory matches a regular expression."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from muster_criteria.kinds.kind import Row, Set
from muster_criteria.kinds.texts import OfText


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


class Matches(OfText):
    """See the module."""

    key: ClassVar[str] = "matches"
    given: ClassVar[Any] = Annotated[str, AfterValidator(_compiles)]
    rank: ClassVar[int] = 9

    def allows(self, limit: Set, text: str) -> bool:
        return re.search(limit.value, text) is not None

    def expected(self, limit: Set, at: float, row: Row) -> str:
        return f"a text that matches {limit.value}"


KIND = Matches()
