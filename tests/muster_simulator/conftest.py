"""Simulated machines in memory, under a clock that tests wind themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_simulator import SimulatedHardware, create_machine
from tests.muster_simulator.winding import WoundClock
from tests.support.in_process import machine_room

Build = Callable[..., SimulatedHardware]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: a machine's state is written at every step of its physics."""
    with machine_room() as room:
        yield room


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(seed, *faults, model=…) -> the machine, under a wound clock."""

    def _build(seed: int = 1, *faults: dict[str, Any], model: str = "h100-sxm-8") -> SimulatedHardware:
        directory = tmp_path / f"node-{model}-{seed}"
        create_machine(directory, model, seed, faults)
        return SimulatedHardware(directory, WoundClock(), random.Random(seed))

    return _build
