"""``at_most``: an item of the inventory is no more than a number."""

from __future__ import annotations

from typing import ClassVar, Literal

from muster_criteria.kinds.kind import LimitKind


class AtMost(LimitKind):
    """See the module."""

    key: ClassVar[str] = "at_most"
    claim: ClassVar[str] = "Every item of the inventory is as the SKU declares"
    section: ClassVar[Literal["limits", "inventory"]] = "inventory"
    side: ClassVar[Literal["lower", "upper", "exact"]] = "upper"
    rank: ClassVar[int] = 7


KIND = AtMost()
