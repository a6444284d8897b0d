"""Texts of the inventory: what the kinds about them have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from muster_criteria.kinds.kind import AS_DECLARED, TEXT, Depends, LimitKind, Numbers, Seen, Set


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OfText(LimitKind):
    """A condition on a text; it has no threshold."""

    claim: str = AS_DECLARED
    section: Literal["limits", "inventory"] = "inventory"

    def looks_at(self, limit: Set) -> Depends:
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

    def problems(self, limit: Set) -> Iterator[tuple[str, str]]:
        if limit.unit != TEXT:
            why = f"the metric is a number in {limit.unit}, of which {self.key} judges nothing"
            yield "wrong-type", f"{why}: use equals, at_least or at_most"

    def allows(self, limit: Set, text: str) -> bool:
        """Whether the limit allows this text."""
        raise NotImplementedError
