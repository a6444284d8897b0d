"""Ranks that wait for storage: none is stuck or lost for it, and where it does not answer all give up together."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster_node.cluster.rendezvous.member import DeviceFailed
from muster_node.cluster.rendezvous.rank import RankGroup
from muster_node.cluster.rendezvous.ranks import Ranks
from muster_node.cluster.storage import checkpoint_phase, together
from muster_node.cluster.storage.checkpoint import Checkpoints
from muster_node.cluster.storage.together import OVER, STILL, Movement, Together
from muster_node.hardware import open_hardware
from muster_node.hardware.seam import Device
from muster_node.probe import Context
from tests.muster_node.cluster.alone import Alone, alone_block

PROGRESS_S, LONG_S = 3.0, 9.0
DEVICES = [Device(f"core{slot}", "core", slot) for slot in range(2)]
Act = Callable[[RankGroup], Any]


@pytest.fixture
def alone() -> Alone:
    return Alone(alone_block(PROGRESS_S))


def run(alone: Alone, work: Any) -> list[tuple[str, Any]]:
    emitted: list[tuple[str, Any]] = []
    context = Context(
        open_hardware(), {}, 1, Path(), lambda metric, device, **fields: emitted.append((metric, fields)), print
    )
    Ranks(alone, DEVICES, context).run(work)
    return emitted


def sleeps(group: RankGroup) -> None:
    group.begin("checkpoint")
    group.mark("save 0")
    # For a heartbeat that is shorter than the limit.
    group.block = dataclasses.replace(group.block, stall_timeout_s=1.2)
    time.sleep(LONG_S)


def test_a_rank_in_a_long_call_of_its_own_is_lost(alone: Alone) -> None:
    with pytest.raises(DeviceFailed):
        run(alone, sleeps)


def test_a_rank_that_no_signal_ends_is_named_all_the_same(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a driver holds: its end is not waited for before the device is named."""
    kill, spared = os.kill, list[int]()
    monkeypatch.setattr(os, "kill", lambda pid, number: spared.append(pid))
    try:
        with pytest.raises(DeviceFailed):
            run(alone, sleeps)
    finally:
        for pid in spared:
            kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert len(spared) == len(DEVICES)


def test_an_error_of_the_software_is_no_fault_of_a_device(alone: Alone) -> None:
    def work(group: RankGroup) -> None:
        with group.waiting("the same weights"):
            raise TypeError("got an unexpected keyword argument")

    with pytest.raises(RuntimeError, match="TypeError: got an unexpected"):
        run(alone, work)


def stands(group: RankGroup) -> None:
    """One rank is in a call that does not return, the other has done its part."""
    if group.rank == 1:
        time.sleep(600.0)


def moves(group: RankGroup) -> int:
    """One rank writes little by little for much longer than nothing may move, the other waits for it."""
    if group.rank == 1:
        with open(os.devnull, "wb", buffering=0) as out:
            for _ in range(int(2 * PROGRESS_S / 0.1)):
                out.write(bytes(2 * together.MOVED_BYTES))
                time.sleep(0.1)
    return group.rank


def at_once(act: Act, patience_s: float, within_s: float = 600.0) -> Any:
    """The work of a rank that does so with the others."""

    def work(group: RankGroup) -> None:
        def late(why: str, what: str, within_s: float) -> None:
            group.emit("late", "node", text=f"{why}: {what}")
            group.gather()
            group.leave()

        group.begin("checkpoint")
        given = Together(group, late, patience_s)("save 0", lambda: act(group), within_s)
        group.emit("given", "node", text=given)
        group.gather()

    return work


def texts(emitted: list[tuple[str, Any]]) -> list[Any]:
    return [fields["text"] for _, fields in emitted]


def test_a_slow_path_that_moves_is_waited_for(alone: Alone) -> None:
    assert texts(run(alone, at_once(moves, PROGRESS_S / 2))) == [[0, 1]] * 2


@pytest.mark.parametrize("patience_s", [0.5, PROGRESS_S + 1.0])
def test_ranks_give_up_a_path_that_stands_still_together_and_end_well(alone: Alone, patience_s: float) -> None:
    """Also where this takes longer than a rank may otherwise be without progress."""
    assert texts(run(alone, at_once(stands, patience_s))) == [f"{STILL}: save 0"] * 2


def waiting(tmp_path: Path, kib: int) -> int:
    file = tmp_path / "meminfo"
    file.write_text(f"MemFree: 9999 kB\nDirty: {kib - 8} kB\nWriteback: 8 kB\nWritebackTmp: 77 kB\n")
    return together.unwritten_bytes(file)


def test_what_the_kernel_still_writes_moves_and_what_other_programs_write_does_not(tmp_path: Path) -> None:
    movement, mib = Movement(), 1 << 20
    assert movement.seen([(False, 0, waiting(tmp_path, 16))])
    assert movement.seen([(False, mib, waiting(tmp_path, 1040))]), "written to memory"
    assert movement.seen([(False, mib, waiting(tmp_path, 976))]), "64 KiB less"
    assert movement.seen([(False, mib, waiting(tmp_path, 800))])
    assert not movement.seen([(False, mib, waiting(tmp_path, 800))])
    for kib in (2000, 800, 1500, 760):  # another program writes and its data go to its disk
        assert not movement.seen([(False, mib, waiting(tmp_path, kib))])
    assert movement.seen([(False, mib, waiting(tmp_path, 700))])
    assert together.unwritten_bytes(tmp_path / "missing") == 0


def test_so_they_do_with_one_that_is_too_slow(alone: Alone) -> None:
    assert texts(run(alone, at_once(moves, 600.0, within_s=0.5))) == [f"{OVER}: save 0"] * 2


@pytest.mark.parametrize(("share", "patience_s", "said"), [(2.0, 0.5, "(save 0)"), (0.5, 60.0, "within 2 s")])
def test_of_a_path_that_hangs_each_node_says_so_and_whether_a_small_file_does(
    share: float, patience_s: float, said: str, alone: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a training, whose block ends intact. A save has a share of the limit of 4 s."""
    monkeypatch.setattr(checkpoint_phase, "PATIENCE_S", patience_s)
    monkeypatch.setattr(Checkpoints, "check", lambda self, need: {})
    monkeypatch.setattr(
        Checkpoints,
        "run",
        lambda self, times, limit_s: self._at_path("save 0", lambda: stands(self._group), share * limit_s),
    )

    def work(given: RankGroup) -> None:
        trainer: Any = type("Trainer", (), {"model": type("Model", (), {"parameters": lambda self: []})()})
        params = {"shared_path": str(tmp_path), "path_s": 4.0, "shared_mib": 1, "checkpoints": 1}
        checkpoint_phase.checkpoint_phase(None, given, trainer, params)
        given.emit("never", "node")

    ((metric, fields),) = run(alone, work)
    assert (metric, fields["value"], fields["labels"]) == ("shared_path", 0.0, {"answers": "yes"})
    assert said in fields["note"]
