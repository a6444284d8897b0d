"""``at_most``: an item of the inventory is no more than a number."""

from __future__ import annotations

from muster_criteria.kinds.kind import AS_DECLARED, LimitKind

KIND = LimitKind(key="at_most", claim=AS_DECLARED, section="inventory", side="upper", rank=7)
