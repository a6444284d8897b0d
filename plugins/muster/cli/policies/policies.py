"""A policy that a command is given by name or by its file's path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from muster import ownership
from muster.errors import MusterError
from muster.settings import settings

if TYPE_CHECKING:
    from muster_criteria.policy_file import Policy


def load(kind: type[Policy], named: str) -> tuple[Policy, str]:
    """Returns the policy and its file's name. Raises MusterError."""
    from muster_criteria import policy_file
    from muster_criteria.sku_files.skus import SHIPPED

    is_file = named == ownership.STDIN or named.endswith((".yaml", ".yml")) or "/" in named
    try:
        path = Path(named) if is_file else policy_file.find(kind, named, [*settings().sku_folders, SHIPPED])
        return policy_file.parse(kind, ownership.read(path), path.name), path.name
    except policy_file.BadPolicy as error:
        raise MusterError(str(error)) from None
