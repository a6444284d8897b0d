"""The kinds of limits that a SKU file may set, one object ``KIND`` in one file each: a new file here is a new kind.

What a kind needs is in its file: its key, its column of margins, what it refuses in a SKU file, and its wording.
"""

from __future__ import annotations

import importlib
import pkgutil

from muster_criteria.kinds.kind import LimitKind


def _found() -> dict[str, LimitKind]:
    modules = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    kinds: list[LimitKind] = [module.KIND for module in modules if hasattr(module, "KIND")]
    return {kind.key: kind for kind in sorted(kinds, key=lambda kind: (kind.rank, kind.key))}


LIMIT_KINDS = _found()
"""By key, in the order in which findings of one device are listed."""
