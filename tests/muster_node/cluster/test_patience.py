"""A rank that waits for storage: it is not stuck for minutes, is never lost for it, and says what does not answer."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from muster_node.cluster.hub import WAITING
from muster_node.cluster.member import DeviceFailed
from muster_node.cluster.rank import RankGroup
from muster_node.cluster.ranks import Ranks
from muster_node.hardware import open_hardware
from muster_node.hardware.seam import Device
from muster_node.probe import Context
from tests.muster_node.cluster.alone import Alone, alone_block

PROGRESS_S, LONG_S = 3.0, 9.0
DEVICE = Device("core0", "core", 0)


@pytest.fixture
def alone() -> Alone:
    return Alone(alone_block(PROGRESS_S))


def sleeps(seconds: float, patience_s: float | None) -> Any:
    """The work of a rank that is in fsync for so long."""

    def work(group: RankGroup) -> None:
        group.begin("checkpoint")
        group.mark("save 0")
        # For a heartbeat that is shorter than the patience.
        group.block = dataclasses.replace(group.block, stall_timeout_s=1.2)
        if patience_s is None:
            time.sleep(seconds)
            return
        with group.patient(patience_s, lambda what: group.emit("shared_path", "node", value=0.0, note=what)):
            time.sleep(seconds)

    return work


def run(alone: Alone, work: Any) -> list[tuple[str, Any]]:
    emitted: list[tuple[str, Any]] = []
    context = Context(
        open_hardware(), {}, 1, Path(), lambda metric, device, **fields: emitted.append((metric, fields)), print
    )
    Ranks(alone, [DEVICE], context).run(work)
    return emitted


def test_without_patience_a_rank_in_a_long_call_is_lost(alone: Alone) -> None:
    with pytest.raises(DeviceFailed):
        run(alone, sleeps(LONG_S, None))


def test_a_rank_that_no_signal_ends_is_named_all_the_same(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a driver holds: its end is not waited for before the device is named."""
    kill, spared = os.kill, list[int]()
    monkeypatch.setattr(os, "kill", lambda pid, number: spared.append(pid))
    try:
        with pytest.raises(DeviceFailed):
            run(alone, sleeps(600.0, None))
    finally:
        for pid in spared:
            kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert len(spared) == 1


def test_an_error_of_the_software_is_no_fault_of_a_device(alone: Alone) -> None:
    def work(group: RankGroup) -> None:
        with group.waiting("the same weights"):
            raise TypeError("got an unexpected keyword argument")

    with pytest.raises(RuntimeError, match="TypeError: got an unexpected"):
        run(alone, work)


def test_a_long_save_is_no_fault_of_a_device(alone: Alone) -> None:
    assert run(alone, sleeps(LONG_S, 60.0)) == []


def test_a_path_that_does_not_answer_is_named_and_no_device_is_lost(alone: Alone) -> None:
    emitted = run(alone, sleeps(LONG_S, 0.5))
    assert emitted == [("shared_path", {"value": 0.0, "note": "save 0"})]
    assert WAITING in alone.states, "so that the hub charges no node"
