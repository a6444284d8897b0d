"""``at_least``: an item of the inventory is no less than a number."""

from __future__ import annotations

from typing import ClassVar, Literal

from muster_criteria.kinds.kind import LimitKind


class AtLeast(LimitKind):
    """See the module."""

    key: ClassVar[str] = "at_least"
    claim: ClassVar[str] = "Every item of the inventory is as the SKU declares"
    section: ClassVar[Literal["limits", "inventory"]] = "inventory"
    side: ClassVar[Literal["lower", "upper", "exact"]] = "lower"
    rank: ClassVar[int] = 6


KIND = AtLeast()
