"""The repair policy of the fleet."""

from __future__ import annotations

import functools
from pathlib import Path

from muster.errors import BadSettings
from muster.settings import settings
from muster_criteria import policy_file
from muster_criteria.policy_file import BadPolicy
from muster_criteria.repair.ladder import DEFAULT, RepairPolicy


def policy() -> RepairPolicy:
    """Returns the repair policy: the first file ``policies/repair.yaml`` of the SKU folders. Raises BadSettings."""
    from muster_criteria.sku_files.skus import SHIPPED

    try:
        path = policy_file.find(DEFAULT, [*settings().sku_folders, SHIPPED])
        return _policy(path, path.stat().st_mtime_ns)
    except BadPolicy as error:
        raise BadSettings(str(error)) from None
    except OSError as error:
        raise BadSettings(f"the repair policy cannot be read: {error.strerror}; see MUSTER_SKU_PATH") from None


@functools.lru_cache(maxsize=4)
def _policy(path: Path, _changed: int) -> RepairPolicy:
    return policy_file.parse(RepairPolicy, path.read_bytes(), path.name)
