"""A device against the median of its siblings, itself left out: what the two kinds of such limits have in common."""

from __future__ import annotations

import dataclasses

from muster_criteria.kinds.kind import Depends, LimitKind, Numbers, Row, Seen, Set
from muster_criteria.words import figure


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OfSiblings(LimitKind):
    """A share of the median over the node's other devices of that kind; ``siblings``: how many, itself included."""

    among_itself: bool = True
    noisy: bool = True

    def looks_at(self, limit: Set) -> Depends:
        return "siblings"

    def at(self, limit: Set, seen: Seen) -> Numbers:
        import numpy as np

        enough = seen.siblings_count >= limit.siblings
        return np.where(enough, limit.value * seen.siblings_median, np.nan)

    def expected(self, limit: Set, at: float, row: Row) -> str:
        bound = f"{self.sign}{figure(at, row['unit'], unlike=row['value'])}"
        return f"{bound} ({limit.value:g} × the median of its {int(row['siblings_count']) - 1} siblings)"
