"""Demos that tests start, each ended with its test; a simulated node in records of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster import store
from muster.model.nodes import NewNode
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


@pytest.fixture
def enrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Enrols a simulated node of this name in the test's own records, where level demo is enough for admission."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "demo")
    monkeypatch.delenv("MUSTER_DATABASE_URL", raising=False)
    store.engine.dispose()
    store.engine.upgrade()
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "a" * 43

    def begin(name: str, **fields: Any) -> None:
        store.nodes.add(NewNode(name, "127.0.0.1", key, "h100-sxm-8", simulated=True, **fields))

    yield begin
    store.engine.dispose()
