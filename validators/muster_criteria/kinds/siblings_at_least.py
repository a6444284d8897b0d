"""``siblings_at_least``: no device below a share of its siblings' median."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, FiniteFloat

from muster_criteria.kinds.siblings import OfSiblings


class SiblingsAtLeast(OfSiblings):
    """See the module."""

    key: ClassVar[str] = "siblings_at_least"
    claim: ClassVar[str] = "No device lies below its share of its siblings' median"
    given: ClassVar[Any] = Annotated[FiniteFloat, Field(gt=0, lt=1)]
    side: ClassVar[Literal["lower", "upper", "exact"]] = "lower"
    rank: ClassVar[int] = 30


KIND = SiblingsAtLeast()
