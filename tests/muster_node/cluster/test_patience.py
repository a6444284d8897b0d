"""A rank that waits for storage: it is not stuck for minutes, is never lost for it, and says what does not answer."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from muster_node.cluster.block import PARAMS, Block, block_of
from muster_node.cluster.hub import WAITING
from muster_node.cluster.member import DeviceFailed, PeerGroup
from muster_node.cluster.rank import RankGroup
from muster_node.cluster.ranks import Ranks
from muster_node.hardware.seam import Device, RealClock
from tests.muster_node.cluster.blocks import rendezvous

PROGRESS_S, LONG_S = 3.0, 9.0
DEVICE = Device("core0", "core", 0)


class Alone(PeerGroup):
    """A node whose block is itself: every barrier is passed at once."""

    def __init__(self, block: Block) -> None:
        super().__init__(block, RealClock(), lambda text: None)
        self.names = (block.name,)
        self.states: set[str] = set()

    def gather(self, payload: Any = None) -> dict[str, Any]:
        return {self.block.name: payload}

    def arrive(self, payload: Any = None) -> None:
        self._payload = payload

    def answer(self, wait_s: float | None = None) -> dict[str, Any] | None:
        return {self.block.name: self._payload}

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "state" and hasattr(self, "states"):
            self.states.add(value)


@pytest.fixture
def alone() -> Alone:
    given = {**{name: each.default for name, each in PARAMS.items()}, **rendezvous(["n1", "n2"]), "rank": 0}
    block = block_of("cluster_training", given, 1)
    return Alone(dataclasses.replace(block, stall_timeout_s=60.0, progress_timeout_s=PROGRESS_S))


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
    ranks = Ranks(alone, [DEVICE], lambda metric, device, **fields: emitted.append((metric, fields)), lambda text: None)
    ranks.run(work)
    return emitted


def test_without_patience_a_rank_in_a_long_call_is_lost(alone: Alone) -> None:
    with pytest.raises(DeviceFailed):
        run(alone, sleeps(LONG_S, None))


def test_a_long_save_is_no_fault_of_a_device(alone: Alone) -> None:
    assert run(alone, sleeps(LONG_S, 60.0)) == []


def test_a_path_that_does_not_answer_is_named_and_no_device_is_lost(alone: Alone) -> None:
    emitted = run(alone, sleeps(LONG_S, 0.5))
    assert emitted == [("shared_path", {"value": 0.0, "note": "save 0"})]
    assert WAITING in alone.states, "so that the hub charges no node"
