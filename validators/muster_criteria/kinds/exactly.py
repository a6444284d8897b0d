"""``exactly``: what must be an exact number, such as a count of mismatches."""

from __future__ import annotations

from muster_criteria.kinds.kind import LimitKind

KIND = LimitKind(key="exactly", claim="What must be an exact number is that number", rank=10)
