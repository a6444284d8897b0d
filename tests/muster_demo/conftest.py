"""Demos that tests start, each ended with its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster_demo import watchdog
from tests.muster_demo.started import Demo


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts a demo; whatever a failing test leaves of it is ended."""
    demos: list[Demo] = []

    def begin(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path / "demo", *arguments))
        return demos[-1]

    yield begin
    for demo in demos:
        if demo.process.poll() is None:
            watchdog.end_all(demo.family(), patience_s=0)
            demo.process.wait(10)
    watchdog.end_all(watchdog.marked(str(tmp_path / "demo")), patience_s=0)
