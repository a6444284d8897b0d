"""The names of devices: their kinds, and their order."""

from __future__ import annotations

import functools
import re
from typing import Literal

Kind = Literal["gpu", "cpu", "node", "memory", "disk", "nic", "fan", "psu", "inlet"]


@functools.lru_cache(maxsize=65_536)
def kind_of(device: str) -> str:
    """ "gpu" of "gpu3", "disk" of "disk:sda", "node" of "node"."""
    return device.partition(":")[0].rstrip("0123456789")


@functools.lru_cache(maxsize=65_536)
def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key under which gpu2 comes before gpu10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name) if part)
