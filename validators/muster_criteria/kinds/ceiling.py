"""``ceiling``: no measurement above a number, or above a multiple of another measurement."""

from __future__ import annotations

from pydantic import FiniteFloat

from muster_criteria.kinds.kind import LimitKind, Times

KIND = LimitKind(
    key="ceiling",
    claim="No measurement lies above its ceiling",
    given=FiniteFloat | Times,
    side="upper",
    noisy=True,
    rank=21,
)
