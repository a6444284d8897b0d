"""The names of devices: their kinds, and their order."""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["gpu", "cpu", "node", "memory", "disk", "nic", "fan", "psu", "inlet"]


def kind_of(device: str) -> str:
    """ "gpu" of "gpu3", "disk" of "disk:sda", "node" of "node"."""
    return device.partition(":")[0].rstrip("0123456789")


def natural(device: str) -> tuple[str, int, str]:
    """Sort key that puts gpu2 before gpu10."""
    kind = kind_of(device)
    number = re.match(r"\d+", device[len(kind) :])
    return (kind, int(number.group()) if number else -1, device)
