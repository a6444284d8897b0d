"""One rank, inside its own process: what its work sees of the block, and the line to its node's process."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable, NoReturn

from muster_node import processes
from muster_node.cluster.rendezvous.block import check_same
from muster_node.cluster.rendezvous.hub import WAITING, WORKING
from muster_node.hardware import open_hardware
from muster_node.hardware.host import parse
from muster_node.hardware.seam import Device

if TYPE_CHECKING:
    from muster_node.cluster.rendezvous.member import PeerGroup

_FDS_MAX = 4096


class RankGroup:
    """The block as one rank's work sees it.

    ``rank`` of ``world``, counted over all nodes; ``local`` of ``per_node`` on this node. ``names``: the nodes in
    order, each with ``per_node`` ranks. ``hardware`` was opened in this process.
    """

    def __init__(
        self, group: PeerGroup, line: socket.socket, device: Device, local: int, per_node: int, rank: int, world: int
    ) -> None:
        self.block, self.names, self.local_address = group.block, group.names, group.local_address
        self.device, self.local, self.per_node, self.rank, self.world = device, local, per_node, rank, world
        self.hardware: Any = None
        self.phase, self.state, self.activity, self._marks = group.phase, WORKING, "", 0
        self._line, self._lock = line, threading.Lock()
        self._lines: Any = None

    def node_of(self, rank: int) -> str:
        """The name of the node of a rank."""
        return self.names[rank // self.per_node]

    def begin(self, phase: str) -> None:
        """Starts a phase."""
        self.phase = phase
        self.mark("")
        self.beat()

    def mark(self, activity: str) -> None:
        """Reports progress with the next sign of life: ``activity`` describes the work that begins.

        Without progress a rank counts as stuck. A line of its own for each mark would wake the node's process several
        times a step, which takes CPU time from the ranks.
        """
        self.activity = activity
        self._marks += 1

    @contextlib.contextmanager
    def waiting(self, activity: str) -> Iterator[None]:
        """While the context is open this rank waits for others (a collective), and is not stuck itself."""
        self.wait(activity)
        yield
        # Not after an exception: a collective that fails is not this rank's failure.
        self.work()

    def wait(self, activity: str) -> None:
        """From now on this rank waits for others, until it calls ``work``."""
        self.state = WAITING
        self.mark(activity)

    def work(self) -> None:
        """The others have arrived; this rank works again."""
        self.state = WORKING
        self.mark("")

    def gather(self, payload: Any = None, here: bool = False) -> list[Any]:
        """Barrier of all ranks of all nodes, or of those ``here``, on this node; returns their payloads by rank.

        Every node gets every payload: what is long has to be summarised by node first.
        """
        self.send("arrive", payload=payload, here=here)
        while True:
            line = self._lines.readline()
            if not line:  # the node's process has ended, and so does this one
                os._exit(1)
            message = json.loads(line)
            if message["kind"] == "go":
                return list(message["payloads"])

    def agree(self, what: str) -> None:
        """Barrier with a value that must be the same for all ranks. Raises ValueError on those that differ from most.

        Where there is no majority, it raises on all.
        """
        check_same(what, [(self.node_of(rank), value) for rank, value in enumerate(self.gather(what))])

    def emit(self, metric: str, device: str, **fields: Any) -> None:
        """Context.emit of the node's process."""
        self.send("emit", metric=metric, device=device, fields=fields)

    def progress(self, text: str) -> None:
        """Context.progress of the node's process."""
        self.send("progress", text=text)

    def leave(self) -> NoReturn:
        """Ends this rank well, whatever its other threads are doing."""
        self.send("done")
        processes.leave(0)

    def beat(self) -> None:
        """A sign of life, with what this rank does."""
        self.send("beat", phase=self.phase, state=self.state, mark=self._marks, activity=self.activity)

    def send(self, kind: str, **fields: Any) -> None:
        """One line to the node's process; blocks until it is on its way."""
        data = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        with self._lock:
            self._line.sendall(data)

    def attach(self) -> None:
        """Takes over in the new process: the line, and a thread that gives signs of life."""
        self._line.setblocking(True)
        self._lines = self._line.makefile("rb")
        self.hardware = open_hardware()
        threading.Thread(target=self._beat_on, name="rank-beat", daemon=True).start()

    def _beat_on(self) -> None:
        pause = threading.Event()
        with contextlib.suppress(OSError):
            while not pause.wait(self.block.heartbeat_s):
                self.beat()


def serve_rank(group: RankGroup, parent: int, work: Callable[[RankGroup], None]) -> NoReturn:
    """Runs ``work`` in a process that was just forked, and ends it."""
    processes.die_with_parent(parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # A session of its own, as torchrun gives its workers: where the kernel shares its cores by session, the ranks of a
    # node would have one share together, and a node of four ranks a quarter of each.
    os.setsid()
    status = 1
    try:
        _close_others(group)
        group.attach()
        _pin(group)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        work(group)
        group.send("done")
        status = 0
    except BaseException as error:
        with contextlib.suppress(OSError, ValueError):  # the node hears of it, whatever becomes of the log
            traceback.print_exc()
        sentence = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if type(error).__name__ in ("Skip", "ValueError"):
            sentence = str(error)
        state = WAITING if of_a_collective(error) else group.state
        with contextlib.suppress(OSError):
            group.send("failure", type=type(error).__name__, sentence=sentence, state=state)
    finally:
        processes.leave(status)


def of_a_collective(error: BaseException) -> bool:
    """Whether PyTorch's exchange between ranks raised the error, so that another rank may be the cause.

    Ranks also exchange without being notified: in the forward pass of FSDP, or where DDP sorts its buckets. NCCL's
    errors have a type of their own, and one of them concerns the rank's own device; gloo's name their source file.
    """
    if "ncclUnhandledCudaError" in str(error):
        return False
    named = any(base.__name__ == "DistError" for base in type(error).__mro__)
    return named or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def _close_others(group: RankGroup) -> None:
    """A copy of the hub's and the agent's connections, held open here, would hide the end of the node's process."""
    own = group._line.fileno()
    os.closerange(3, own)
    os.closerange(own + 1, _FDS_MAX)


def _pin(group: RankGroup) -> None:
    """Pins this process to the CPUs nearest to its GPU. A rank on a CPU is pinned when its compute is made.

    Elsewhere copies cross the interconnect of the sockets, and the rank becomes a straggler without a fault. NCCL finds
    the NIC nearest to each GPU by itself. Its `NCCL_IB_HCA` must be the same for all ranks of a node, or they build
    different rings (NVIDIA/nccl issue 1478).
    """
    device = group.device
    if device.kind != "gpu" or group.hardware.simulated:
        return
    for fact in group.hardware.inventory():
        if (fact.name, fact.device) == ("gpu_numa_node", device.id) and fact.value is not None:
            _run_on(int(fact.value))


def _run_on(numa_node: int) -> None:
    """Runs on those CPUs of a NUMA node that this process may use."""
    with contextlib.suppress(OSError, ValueError):
        text = pathlib.Path(f"/sys/devices/system/node/node{numa_node}/cpulist").read_text(encoding="ascii")
        cpus = set(parse.parse_cpu_list(text)) & os.sched_getaffinity(0)
        if cpus:
            os.sched_setaffinity(0, cpus)
