"""What the Slurm backend makes of what Slurm's commands write, where no real Slurm can be brought to write it."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.admission.clusters import backend_of
from muster.admission.slurm import Slurm
from muster.errors import SchedulerDown

ME = getpass.getuser()
CONFIG = "PreemptType = preempt/partition_prio\nPreemptExemptTime = 00:00:00\n"
USERS = "PartitionName=users PriorityTier=10 PreemptMode=OFF GraceTime=0 State=UP Nodes=n[0-1]\n"
OURS = "PartitionName=muster PriorityTier=1 PreemptMode=CANCEL GraceTime=0 State=UP Nodes=n[0-1]\n"

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


SQUEUE = """
case "$*" in
*--nodelist*) printf '1|ada\\n2|bob\\n' ;;
*) echo train ;;
esac
"""


def test_a_job_that_was_ended_is_named_though_the_next_cannot_be_ended(commands: Commands) -> None:
    backend = commands({"end_corrupted_jobs": True}, squeue=SQUEUE, scancel='[ "$1" = 1 ]')
    assert backend.end_jobs is not None
    ended = iter(backend.end_jobs("n0"))
    assert next(ended) == "1 (train) of ada"
    with pytest.raises(SchedulerDown):
        next(ended)


@pytest.mark.parametrize("line", ["x|ada", "1 2|ada", "-1|ada", "1|", "1"])
def test_a_list_of_jobs_that_cannot_be_read_ends_none(commands: Commands, tmp_path: Path, line: str) -> None:
    backend = commands({"end_corrupted_jobs": True}, squeue=write(line), scancel="true")
    assert backend.end_jobs is not None
    with pytest.raises(SchedulerDown):
        list(backend.end_jobs("n0"))
    assert "scancel" not in (tmp_path / "calls").read_text()
