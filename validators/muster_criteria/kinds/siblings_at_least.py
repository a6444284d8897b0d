"""``siblings_at_least``: no device below a share of the median of the others."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, FiniteFloat

from muster_criteria.kinds.siblings import OfSiblings

KIND = OfSiblings(
    key="siblings_at_least",
    claim="No device lies below its share of the median of the others",
    given=Annotated[FiniteFloat, Field(gt=0, lt=1)],
    side="lower",
    rank=30,
)
