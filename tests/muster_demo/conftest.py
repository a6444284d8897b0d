"""Demos that tests start, each ended with its test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster_demo import watchdog
from tests.muster_demo.started import Demo


@pytest.fixture
def start() -> Iterator[Callable[..., Demo]]:
    """Starts a demo; whatever a failing test leaves of it is ended. Slurm's sockets need a short path."""
    demos: list[Demo] = []
    folder = Path(tempfile.mkdtemp(prefix="muster-"))

    def begin(*arguments: str) -> Demo:
        demos.append(Demo(folder / "demo", *arguments))
        return demos[-1]

    yield begin
    for demo in demos:
        if demo.process.poll() is None:
            watchdog.end_all(demo.family(), patience_s=0)
            demo.process.wait(10)
    watchdog.end_all(watchdog.marked(str(folder / "demo")), patience_s=0)
    shutil.rmtree(folder)
