"""``siblings_at_most``: no device above a multiple of the median of the node's devices."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, FiniteFloat

from muster_criteria.kinds.siblings import OfSiblings

KIND = OfSiblings(
    key="siblings_at_most",
    claim="No device lies above its share of the median of the node's devices",
    given=Annotated[FiniteFloat, Field(gt=1)],
    side="upper",
    rank=31,
)
