"""The hardware seam: the only access of probes to a machine."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster_node.hardware.seam import Hardware

HARDWARE_ENV = "MUSTER_HARDWARE"
"""``MODULE:FUNCTION``, which opens another machine than this host. The node's own login sets it; a plan cannot."""


def open_hardware() -> Hardware:
    """The machine that ``MUSTER_HARDWARE`` opens, or this host where it is not set.

    Raises RuntimeError if the variable names nothing that can be imported: this host is never measured in its place.
    """
    opener = os.environ.get(HARDWARE_ENV)
    if opener is None:
        from muster_node.hardware.host.machine import open_host

        return open_host()
    module, _, function = opener.partition(":")
    try:
        open_named = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise RuntimeError(f"{HARDWARE_ENV}={opener} cannot be opened: {error}") from error
    return open_named()  # type: ignore[no-any-return]
