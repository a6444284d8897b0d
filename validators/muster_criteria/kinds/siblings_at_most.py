"""``siblings_at_most``: no device above a multiple of its siblings' median."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, FiniteFloat

from muster_criteria.kinds.siblings import OfSiblings


class SiblingsAtMost(OfSiblings):
    """See the module."""

    key: ClassVar[str] = "siblings_at_most"
    claim: ClassVar[str] = "No device lies above its share of its siblings' median"
    given: ClassVar[Any] = Annotated[FiniteFloat, Field(gt=1)]
    side: ClassVar[Literal["lower", "upper", "exact"]] = "upper"
    rank: ClassVar[int] = 31


KIND = SiblingsAtMost()
