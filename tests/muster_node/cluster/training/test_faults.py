"""How a node starts torchrun for the run with faults, and gives it up."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster_node.cluster.storage import checkpoint
from muster_node.cluster.training import faults


def group(progress_timeout_s: float = 120.0) -> Any:
    """A block of one node, which others reach on its loopback."""
    block = SimpleNamespace(name="n0", session="ab" * 16, interface="", progress_timeout_s=progress_timeout_s)
    return SimpleNamespace(
        block=block, names=("n0",), local_address="127.0.0.1", gather=lambda payload=None: {"n0": payload},
        mark=lambda activity: None,
    )  # fmt: skip


def test_a_run_that_is_silent_is_given_up_before_its_node_counts_as_stuck(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert "within 1 s" in faults._run(command, tmp_path, group(1.2))


def test_ranks_use_the_network_interface_of_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    shown = "import os, sys; sys.exit(os.environ['GLOO_SOCKET_IFNAME'] + os.environ['NCCL_SOCKET_IFNAME'])"
    assert "lo=lo" in faults._run([sys.executable, "-c", shown], tmp_path, group())


def test_torchruns_id_names_nothing_of_the_blocks_secret(tmp_path: Path) -> None:
    shown = "import os, sys; sys.exit(os.environ['PET_RDZV_ID'])"
    printed = faults._run([sys.executable, "-c", shown], tmp_path, group())
    assert len(printed.split()[-1]) == 64
    assert "abab" not in printed


def test_torchrun_gives_others_the_address_at_which_they_reach_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(faults, "_run", lambda command, scratch, group: commands.append(command) or "it was not run")
    params = {"shared_path": str(tmp_path), "fault_steps": 12}
    context: Any = SimpleNamespace(params=params, seed=1, scratch=tmp_path, emit=lambda *row, **fields: None)
    faults.fault_run(context, group(), 1)
    (command,) = commands
    assert command[command.index("--local-addr") + 1] == "127.0.0.1"
    assert "ab" * 4 not in " ".join(command)
    assert checkpoint.folders_of(str(tmp_path), "ab" * 16)[1].is_dir(), "before a command line shows its name"


def test_nothing_is_loaded_from_a_path_in_which_others_may_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_run", None)
    tmp_path.chmod(0o777)
    rows: list[dict[str, Any]] = []
    params = {"shared_path": str(tmp_path), "fault_steps": 12}
    emit: Any = lambda *row, **fields: rows.append(fields)  # noqa: E731
    faults.fault_run(SimpleNamespace(params=params, seed=1, scratch=tmp_path, emit=emit), group(), 1)  # type: ignore[arg-type]
    (row,) = rows
    assert "value" not in row
    assert row["note"]
    assert list(tmp_path.iterdir()) == []
