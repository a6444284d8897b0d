"""``at_least``: an item of the inventory is no less than a number."""

from __future__ import annotations

from muster_criteria.kinds.kind import AS_DECLARED, LimitKind, Row, Set
from muster_criteria.words import PCIE_GENERATION, pcie_speed


class AtLeast(LimitKind):
    """See the module."""

    def expected(self, limit: Set, at: float, row: Row) -> str:
        if row["metric"] in PCIE_GENERATION:
            return f"at least {pcie_speed(at)}"
        return super().expected(limit, at, row)


KIND = AtLeast(key="at_least", claim=AS_DECLARED, section="inventory", side="lower", rank=6)
