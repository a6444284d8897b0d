"""Texts of the inventory: what the kinds about them have in common."""

from __future__ import annotations

from typing import ClassVar, Literal

from muster_criteria.kinds.kind import LimitKind, Numbers, Seen, Set


class OfText(LimitKind):
    """A condition on a text; it has no threshold."""

    section: ClassVar[Literal["limits", "inventory"]] = "inventory"
    claim: ClassVar[str] = "Every item of the inventory is as the SKU declares"

    def looks_at(self, limit: Set) -> Literal["value", "siblings", "row"]:
        return "row"

    def at(self, limit: Set, seen: Seen) -> Numbers:
        import numpy as np

        return np.full(len(seen.value), np.nan)

    def margin(self, limit: Set, at: Numbers, seen: Seen) -> Numbers:
        import numpy as np

        return np.array(
            [np.nan if text is None else (0.0 if self.allows(limit, text) else -1.0) for text in seen.text],
            dtype=np.float64,
        )

    def allows(self, limit: Set, text: str) -> bool:
        """Whether the limit allows this text."""
        raise NotImplementedError
