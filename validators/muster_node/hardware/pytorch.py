"""PyTorch, which is found on the node or in its container: imported at run time, never with this package."""

from __future__ import annotations

import importlib
from typing import Any

from muster_node.probe import Skip


def require_torch() -> Any:
    """The torch module. Raises Skip where it is not installed or cannot be loaded."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise Skip(f"PyTorch cannot be imported: {error}") from error
