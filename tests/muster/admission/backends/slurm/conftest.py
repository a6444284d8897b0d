"""A Slurm backend whose commands are shell scripts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.admission.backends.slurm.backend import Slurm
from muster.admission.clusters import backend_of

Commands = Callable[..., Slurm]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Returns what makes a backend whose commands are shell scripts; each call is a line of ``tmp_path/calls``."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(settings: dict[str, Any] | None = None, **scripts: str) -> Slurm:
        for name, script in scripts.items():
            path = tmp_path / name
            path.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n{script}\n')
            path.chmod(0o755)
        chosen = {"kind": "slurm", "test_partition": "muster"} | (settings or {})
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": chosen}))
        found = backend_of("alpha")
        assert isinstance(found, Slurm)
        return found

    return make


def write(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND"
