"""``at_least``: an item of the inventory is no less than a number."""

from __future__ import annotations

from typing import ClassVar, Literal

from muster_criteria.kinds.kind import LimitKind, Row, Set
from muster_criteria.words import PCIE_GENERATION, pcie_speed


class AtLeast(LimitKind):
    """See the module."""

    key: ClassVar[str] = "at_least"
    claim: ClassVar[str] = "Every item of the inventory is as the SKU declares"
    section: ClassVar[Literal["limits", "inventory"]] = "inventory"
    side: ClassVar[Literal["lower", "upper", "exact"]] = "lower"
    rank: ClassVar[int] = 6

    def expected(self, limit: Set, at: float, row: Row) -> str:
        if row["metric"] in PCIE_GENERATION:
            return f"at least {pcie_speed(at)}"
        return super().expected(limit, at, row)


KIND = AtLeast()
