"""The one hardware seam: everything a probe knows of a machine comes through here."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster_node.hardware.seam import Hardware

SIMULATED_ENV = "MUSTER_SIMULATED_HARDWARE"
"""Names the directory that describes a simulated machine; set by that machine's own server, never by a plan."""


def open_hardware() -> "Hardware":
    """The machine this process runs on: simulated if the environment says so, else this very host."""
    directory = os.environ.get(SIMULATED_ENV)
    if directory:
        from muster_simulator import open_simulated

        return open_simulated(pathlib.Path(directory))
    from muster_node.hardware.host.machine import open_host

    return open_host()
