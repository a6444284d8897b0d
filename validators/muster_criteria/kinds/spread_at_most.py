"""``spread_at_most``: the spread of a measurement's repeats, (p95 − p5) / median, in %."""

from __future__ import annotations

from collections.abc import Iterator

from muster_criteria.kinds.kind import Depends, LimitKind, Numbers, Row, Seen, Set
from muster_criteria.words import figure


class SpreadAtMost(LimitKind):
    """See the module."""

    def looks_at(self, limit: Set) -> Depends:
        return "row"

    def takes(self, limit: Set, unit: str) -> bool:
        return True

    def margin(self, limit: Set, at: Numbers, seen: Seen) -> Numbers:
        import numpy as np

        return np.where(np.isnan(seen.value), np.nan, at - 100.0 * seen.spread)

    def problems(self, limit: Set) -> Iterator[tuple[str, str]]:
        if limit.unit != "%":
            yield "wrong-unit", f"the unit is {limit.unit}, but a spread is judged in %"

    def judged(self, row: Row) -> tuple[float, str]:
        return 100.0 * float(row["spread"]), "%"

    def observed(self, limit: Set, row: Row) -> str | None:
        return f"a spread of {figure(*self.judged(row), unlike=float(limit.value))} over {row['samples']} repeats"

    def expected(self, limit: Set, at: float, row: Row) -> str:
        return f"at most {figure(at, '%', unlike=self.judged(row)[0])}"


KIND = SpreadAtMost(
    key="spread_at_most",
    claim="No measurement's repeats spread wider than they may",
    side="upper",
    among_itself=True,
    bounds=False,
    rank=40,
)
