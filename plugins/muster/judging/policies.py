"""The fleet's policies: the first file of that name in the folders of SKU files."""

from __future__ import annotations

import functools
from pathlib import Path

from muster.errors import BadSettings
from muster.settings import settings
from muster_criteria import policy_file
from muster_criteria.health import policy as health_policy
from muster_criteria.health.policy import HealthPolicy
from muster_criteria.policy_file import BadPolicy, Policy
from muster_criteria.repair import ladder
from muster_criteria.repair.ladder import RepairPolicy


def health() -> HealthPolicy:
    """Returns the health policy. Raises BadSettings."""
    return _in_force(HealthPolicy, health_policy.DEFAULT)


def repair() -> RepairPolicy:
    """Returns the repair policy. Raises BadSettings."""
    return _in_force(RepairPolicy, ladder.DEFAULT)


def _in_force(kind: type[Policy], name: str) -> Policy:
    from muster_criteria.sku_files.skus import SHIPPED

    try:
        path = policy_file.find(kind, name, [*settings().sku_folders, SHIPPED])
        # By its time, so that a corrected file counts at once.
        found: Policy = _parsed(kind, path, path.stat().st_mtime_ns)
        return found
    except BadPolicy as error:
        raise BadSettings(str(error)) from None
    except OSError as error:
        raise BadSettings(f"the {name} policy cannot be read: {error.strerror}; see MUSTER_SKU_PATH") from None


@functools.lru_cache(maxsize=8)
def _parsed(kind: type[Policy], path: Path, _changed: int) -> Policy:
    return policy_file.parse(kind, path.read_bytes(), path.name)
