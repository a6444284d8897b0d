"""``ceiling``: no measurement above a number, or above a multiple of another measurement."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import FiniteFloat

from muster_criteria.kinds.kind import LimitKind, Times


class Ceiling(LimitKind):
    """See the module."""

    key: ClassVar[str] = "ceiling"
    claim: ClassVar[str] = "No measurement lies above its ceiling"
    given: ClassVar[Any] = FiniteFloat | Times
    side: ClassVar[Literal["lower", "upper", "exact"]] = "upper"
    noisy: ClassVar[bool] = True
    rank: ClassVar[int] = 21


KIND = Ceiling()
