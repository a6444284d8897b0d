"""A device against the median of its siblings: what the two kinds of such limits have in common."""

from __future__ import annotations

import dataclasses

from muster_criteria.kinds.kind import Depends, LimitKind, Numbers, Row, Seen, Set
from muster_criteria.words import figure


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OfSiblings(LimitKind):
    """A share of the median over the node's devices of that kind; ``siblings``: how many, the judged one included.

    A lower limit leaves the judged device out of the median, so that even half of the devices, if equally bad, do not
    lower their own limit. An upper one does not: in an air path of two rows, half of the GPUs are hotter by design.
    """

    among_itself: bool = True
    noisy: bool = True

    def looks_at(self, limit: Set) -> Depends:
        return "siblings"

    def at(self, limit: Set, seen: Seen) -> Numbers:
        import numpy as np

        enough = seen.siblings_count >= limit.siblings
        median = seen.others_median if self.side == "lower" else seen.siblings_median
        return np.where(enough, limit.value * median, np.nan)

    def expected(self, limit: Set, at: float, row: Row) -> str:
        bound = f"{self.sign}{figure(at, row['unit'], unlike=row['value'])}"
        count = int(row["siblings_count"])
        of = f"its {count - 1} siblings" if self.side == "lower" else f"the node's {count} devices"
        return f"{bound} ({limit.value:g} × the median of {of})"
