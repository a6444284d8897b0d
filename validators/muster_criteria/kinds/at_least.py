"""``at_least``: an item of the inventory is no less than a number."""

from __future__ import annotations

from muster_criteria.kinds.kind import AS_DECLARED, LimitKind

KIND = LimitKind(key="at_least", claim=AS_DECLARED, section="inventory", side="lower", rank=6)
