"""``equals``: an item of the inventory is this number, or this text."""

from __future__ import annotations

from pydantic import FiniteFloat

from muster_criteria.kinds.kind import Depends, LimitKind, Numbers, Row, Seen, Set
from muster_criteria.kinds.texts import OfText
from muster_criteria.words import PCIE_GENERATION, pcie_speed


class Equals(OfText):
    """See the module."""

    def looks_at(self, limit: Set) -> Depends:
        return "row" if isinstance(limit.value, str) else "value"

    def at(self, limit: Set, seen: Seen) -> Numbers:
        return super().at(limit, seen) if isinstance(limit.value, str) else LimitKind.at(self, limit, seen)

    def margin(self, limit: Set, at: Numbers, seen: Seen) -> Numbers:
        number = not isinstance(limit.value, str)
        return LimitKind.margin(self, limit, at, seen) if number else super().margin(limit, at, seen)

    def allows(self, limit: Set, text: str) -> bool:
        return bool(text == limit.value)

    def expected(self, limit: Set, at: float, row: Row) -> str:
        if isinstance(limit.value, str):
            return repr(limit.value)
        return pcie_speed(at) if row["metric"] in PCIE_GENERATION else super().expected(limit, at, row)


KIND = Equals(key="equals", given=FiniteFloat | str, rank=5)
