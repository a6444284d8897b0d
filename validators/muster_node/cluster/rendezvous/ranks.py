"""The ranks of one node: a process for each device, forked, pinned, watched, and named with its device when lost.

Forked for the reasons that ``hardware.host.cpu_workers`` gives; nothing of CUDA has run before. The node's own process
speaks for all its ranks at the hub: it arrives when they all have, waits when they all wait, and fails with the device
of the rank that died, stopped, or made no progress.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any, Callable

from muster_node.cluster.rendezvous.hub import LOOKS, WAITING, WORKING
from muster_node.cluster.rendezvous.member import DeviceFailed, PeerGroup
from muster_node.cluster.rendezvous.rank import RankGroup, serve_rank
from muster_node.cluster.rendezvous.wire import Gone, Link, Message, line_of, wait_for
from muster_node.hardware.seam import Device, RealClock
from muster_node.probe import Context, Skip

_TICK_S = 0.05
_REAP_S = 2.0
"""How long ranks have to end once they were killed. One that a driver holds does not end, and is left behind:
first the other nodes have to learn which device it was."""
_OURS_FIRST = 0.9
"""A rank's limits are a little shorter than the hub's, so that the node names its device before the hub names it."""

_CLOCK = RealClock()
SOFTWARE = (
    "ImportError", "ModuleNotFoundError", "AttributeError", "TypeError", "NameError", "NotImplementedError",
    "OutOfMemoryError", "BackendCompilerFailed", "InternalTorchDynamoError",
)  # fmt: skip
"""What a rank raises through no fault of its device: its node's software, or a model that does not fit."""
RankWork = Callable[[RankGroup], None]


class CollectiveFailed(RuntimeError):
    """A rank's collective failed while it waited for others: not this node's fault, as far as it can tell."""


@dataclasses.dataclass
class _Rank:
    """One rank's process, as its node sees it."""

    device: Device
    pid: int
    link: Link
    message_at: float
    moved_at: float
    phase: str = "join"
    state: str = WORKING
    mark: int = -1
    activity: str = ""
    arrived: bool = False
    here: bool = False
    payload: Any = None
    done: bool = False
    failure: tuple[str, str] | None = None


class Ranks:
    """Runs ``work`` in one process for each of ``devices``. Raises what ended it (see ``run``)."""

    def __init__(self, group: PeerGroup, devices: Sequence[Device], context: Context) -> None:
        self._group, self._devices, self._hardware = group, devices, context.hardware
        self._emit, self._progress = context.emit, context.progress
        self._ranks: list[_Rank] = []
        self._waits_for_nodes = False

    def run(self, work: RankWork) -> None:
        """Returns once all ranks have ended well.

        Raises DeviceFailed for a rank that was lost, Skip as a rank raised it, ValueError for ranks that cannot work
        together, RuntimeError for an error of ``SOFTWARE``, CollectiveFailed where a collective failed under them,
        BlockEnded if the block ended meanwhile.
        """
        counts = self._group.gather(len(self._devices))
        self._group.agree(f"{len(self._devices)} ranks a node")
        self._hardware.release_gpus()
        first = sum(counts[name] for name in self._group.names[: self._group.names.index(self._group.block.name)])
        try:
            for local, device in enumerate(self._devices):
                self._ranks.append(self._start(local, device, first + local, sum(counts.values()), work))
            while not all(rank.done for rank in self._ranks):
                self._step()
        finally:
            self._end()

    def _start(self, local: int, device: Device, number: int, world: int, work: RankWork) -> _Rank:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            serve_rank(RankGroup(self._group, theirs, device, local, len(self._devices), number, world), parent, work)
        theirs.close()
        now = _CLOCK.now()
        return _Rank(device, pid, Link(ours), now, now)

    def _step(self) -> None:
        links = [rank.link for rank in self._ranks if not rank.done]
        wait_for(links, _TICK_S if self._waits_for_nodes else self._group.block.heartbeat_s / LOOKS)
        for rank in self._ranks:
            if not rank.done:
                self._read(rank)
        self._fail()
        self._watch()
        if all(rank.arrived or rank.done for rank in self._ranks):
            self._meet()

    def _read(self, rank: _Rank) -> None:
        try:
            rank.link.flush()
            for message in rank.link.receive():
                self._handle(rank, message)
        except Gone:
            if not rank.done:
                self._lost(rank, _ended(rank.pid))

    def _handle(self, rank: _Rank, message: Message) -> None:
        rank.message_at = _CLOCK.now()
        kind = message["kind"]
        if kind == "beat":
            reported = (message["phase"], message["state"], message["mark"])
            if reported != (rank.phase, rank.state, rank.mark):
                rank.moved_at = rank.message_at
                self._moved(rank, message)
            rank.phase, rank.state, rank.mark = reported
            rank.activity = message["activity"]
        elif kind == "emit":
            self._emit(message["metric"], message["device"], **message["fields"])
        elif kind == "progress":
            self._progress(message["text"])
        elif kind == "arrive":
            rank.arrived, rank.here, rank.payload = True, message["here"], message["payload"]
        elif kind == "done":
            rank.done = True
        elif kind == "failure":
            rank.failure = (message["type"], message["sentence"])
            rank.state = message["state"]

    def _moved(self, rank: _Rank, message: Message) -> None:
        group = self._group
        if message["phase"] not in (group.phase, rank.phase):
            group.begin(message["phase"])
        elif message["activity"] and message["state"] == WORKING:
            group.mark("{} on {}".format(message["activity"], rank.device.id))
        else:
            group.mark(message["activity"])

    def _fail(self) -> None:
        """Raises what a rank failed with: its own fault before a collective's, of which all complain at once."""
        failed = [rank for rank in self._ranks if rank.failure]
        for rank in sorted(failed, key=lambda rank: rank.state == WAITING):
            assert rank.failure is not None
            kind, sentence = rank.failure
            if rank.state == WORKING:
                self._group.state = WORKING  # signs of life may tell of a wait that is over
            if kind == "Skip":
                raise Skip(sentence)
            if kind == "ValueError":
                raise ValueError(sentence)
            if kind in SOFTWARE:
                raise RuntimeError(sentence)
            if rank.state == WAITING:
                self._settle_deaths()
                self._group.state = WAITING
                raise CollectiveFailed(f"{rank.device.id}: {sentence}")
            raise DeviceFailed(rank.device.id, sentence)

    def _settle_deaths(self) -> None:
        """A collective fails on all ranks when one of them dies: that one is the reason, and its end is read first."""
        until = _CLOCK.now() + 2 * _TICK_S
        while _CLOCK.now() < until:
            _CLOCK.sleep(_TICK_S / 5)
            for rank in self._ranks:
                if not rank.done and rank.failure is None:
                    self._read(rank)

    def _watch(self) -> None:
        block, now = self._group.block, _CLOCK.now()
        active = [rank for rank in self._ranks if not rank.done]
        for rank in active:
            if now - rank.message_at > _OURS_FIRST * block.stall_timeout_s:
                self._lost(rank, f"its rank gave no sign of life for {now - rank.message_at:.0f} s")
            stuck = rank.state == WORKING and not rank.arrived
            if stuck and now - rank.moved_at > _OURS_FIRST * block.progress_timeout_s:
                where = rank.phase + (", " + rank.activity if rank.activity else "")
                self._lost(rank, f"its rank made no progress for {now - rank.moved_at:.0f} s in {where}")
        behind = [rank for rank in active if not rank.arrived]
        if not self._waits_for_nodes:
            self._group.state = WAITING if behind and all(rank.state == WAITING for rank in behind) else WORKING

    def _lost(self, rank: _Rank, why: str) -> None:
        self._group.state = WORKING
        raise DeviceFailed(rank.device.id, f"{why} (phase {rank.phase})")

    def _meet(self) -> None:
        """All ranks here have arrived: the node arrives at the hub, and its ranks go on once all nodes have arrived.

        Ranks that wait only for each other go on at once.
        """
        if not self._waits_for_nodes:
            if all(rank.done for rank in self._ranks):
                return
            payloads = [rank.payload for rank in self._ranks]
            if any(rank.here for rank in self._ranks):
                self._answer(payloads)
                return
            self._group.arrive(payloads)
            self._waits_for_nodes = True
        answer = self._group.answer(0.0)
        if answer is None:
            return
        self._waits_for_nodes = False
        self._answer([payload for name in self._group.names for payload in answer[name]])

    def _answer(self, by_rank: list[Any]) -> None:
        now, line = _CLOCK.now(), line_of("go", payloads=by_rank)
        for rank in self._ranks:
            rank.arrived, rank.here, rank.payload, rank.moved_at = False, False, None, now
            with contextlib.suppress(Gone):
                rank.link.send_line(line)

    def _end(self) -> None:
        for rank in self._ranks:
            if not rank.done:
                with contextlib.suppress(OSError):
                    os.kill(rank.pid, signal.SIGKILL)
        until = _CLOCK.now() + _REAP_S
        for rank in self._ranks:
            _reaped(rank.pid, until)
            rank.link.close()


def _reaped(pid: int, until: float) -> int | None:
    """A rank process's exit status; None if it was reaped before, or has not ended by ``until``."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            if _CLOCK.now() >= until:
                break
            _CLOCK.sleep(_TICK_S / 5)
    return None


def _ended(pid: int) -> str:
    """How a rank's process ended."""
    status = _reaped(pid, _CLOCK.now() + _REAP_S)
    if status is None:
        return "its rank's process ended"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"its rank was killed by {signal.Signals(number).name}"
    return f"its rank ended with status {os.WEXITSTATUS(status)}"
