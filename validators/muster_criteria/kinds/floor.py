"""``floor``: no measurement below a number, or below a multiple of another measurement."""

from __future__ import annotations

from pydantic import FiniteFloat

from muster_criteria.kinds.kind import LimitKind, Times

KIND = LimitKind(
    key="floor",
    claim="No measurement lies below its floor",
    given=FiniteFloat | Times,
    side="lower",
    noisy=True,
    rank=20,
)
