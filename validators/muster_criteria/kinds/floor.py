"""``floor``: no measurement below a number, or below a multiple of another measurement."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import FiniteFloat

from muster_criteria.kinds.kind import LimitKind, Times


class Floor(LimitKind):
    """See the module."""

    key: ClassVar[str] = "floor"
    claim: ClassVar[str] = "No measurement lies below its floor"
    given: ClassVar[Any] = FiniteFloat | Times
    side: ClassVar[Literal["lower", "upper", "exact"]] = "lower"
    noisy: ClassVar[bool] = True
    rank: ClassVar[int] = 20


KIND = Floor()
