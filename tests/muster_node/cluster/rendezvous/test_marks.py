"""What a node learns of its ranks by their signs of life, which carry their marks."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from muster_node.cluster.rendezvous.hub import WAITING, WORKING
from muster_node.cluster.rendezvous.member import DeviceFailed
from muster_node.cluster.rendezvous.rank import RankGroup
from muster_node.cluster.rendezvous.ranks import Ranks
from muster_node.hardware import open_hardware
from muster_node.hardware.seam import Device
from muster_node.probe import Context
from tests.muster_node.cluster.alone import Alone, alone_block

CORES = [Device(f"core{slot}", "core", slot) for slot in range(2)]


def test_a_mark_sends_nothing_and_the_next_sign_of_life_tells_the_last() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    group = RankGroup(Alone(alone_block()), theirs, CORES[0], 0, 1, 0, 1)
    sent = []
    for step in range(3):
        group.mark(f"step {step}")
        group.wait("sums")
        if step == 2:
            group.work()
        with pytest.raises(BlockingIOError):
            ours.recv(1)
        group.beat()
        sent.append(json.loads(ours.recv(4096)))
    assert [each["state"] for each in sent] == [WAITING, WAITING, WORKING]
    assert len({each["mark"] for each in sent}) == 3


def test_the_node_learns_of_a_phase_at_its_begin() -> None:
    ours, theirs = socket.socketpair()
    group = RankGroup(Alone(alone_block()), theirs, CORES[0], 0, 1, 0, 1)
    group.begin("training")
    assert json.loads(ours.recv(4096))["phase"] == "training"


def waits_or_hangs(group: RankGroup) -> None:
    """One rank holds the interpreter's lock in a call of C, and was waiting for others when it last reported."""
    group.begin("training")
    group.wait("sums")
    time.sleep(3 * group.block.heartbeat_s)
    if group.local == 1:
        group.work()
        ctypes.PyDLL(None).sleep(600)
    time.sleep(600)


def test_a_rank_that_hangs_with_the_interpreters_lock_is_the_one_that_is_named() -> None:
    alone = Alone(dataclasses.replace(alone_block(), stall_timeout_s=3.0))
    context = Context(open_hardware(), {}, 1, Path(), _nothing, print)
    with pytest.raises(DeviceFailed) as failed:
        Ranks(alone, CORES, context).run(waits_or_hangs)
    assert failed.value.device == CORES[1].id


def waits_then_fails(group: RankGroup) -> None:
    """All wait for others when they last tell of themselves; one fails directly after that, by its own device."""
    group.begin("training")
    group.wait("sums")
    group.beat()
    time.sleep(0.5)
    if group.local == 1:
        group.work()
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    time.sleep(600)


def test_a_device_that_fails_after_it_waited_fails_for_the_hub_too() -> None:
    alone = Alone(dataclasses.replace(alone_block(), stall_timeout_s=6.0))
    context = Context(open_hardware(), {}, 1, Path(), _nothing, print)
    with pytest.raises(DeviceFailed) as failed:
        Ranks(alone, CORES, context).run(waits_then_fails)
    assert failed.value.device == CORES[1].id
    assert WAITING in alone.states
    assert alone.state == WORKING  # by which the node tells the hub that the failure is its own


def _nothing(*given: Any, **fields: Any) -> None: ...
