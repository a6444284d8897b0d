"""What a backend for one rail offers: a receiver that is opened first, and a sender that gets its endpoint."""

from __future__ import annotations

import abc
import dataclasses
import re
from typing import Any

from muster_node.hardware.host.fabric import adapters
from muster_node.hardware.host.sysfs import Files

Endpoint = dict[str, Any]
"""What the sender has to know of a receiver; JSON."""


class NotSent(Exception):
    """Nothing could be sent over the rail; the message is a clause that names the reason."""


class NotTried(NotSent):
    """The rail could not be chosen, or this node could not begin to send, so nothing is known about the rail; the
    message is a clause that names the reason."""


_OWN_ERROR = re.compile(
    r"(?:IB device \S+ not found|Couldn't (?:allocate (?:MR|PD|CQ|QP)|create (?:CQ|QP|completion channel))"
    r"|Couldn't listen to port|Unable to create QP"
    r"|Call to ibv_(?:open_device|alloc_pd|reg_\w*mr\w*|create_(?:cq|qp)) failed)[^\n]*"
)
"""What perftest and NCCL say where a node lacks something that no partner has to do with, such as memory that may be
locked. Of a port that is down, too, perftest says that it has no context for the device, so that this is no such line.
"""


def not_sent(device: str, why: str, output: str) -> NotSent:
    """The error of a tool that failed, by its ``output``: NotTried for what this node itself lacks, such as the RDMA
    ``device``."""
    adapter = device.partition("/")[0]
    if adapter and adapter not in adapters(Files()):
        return NotTried(f"{why}; this node has no RDMA device {adapter}: correct label rails, or look for its NIC")
    own = _OWN_ERROR.search(output)
    return NotTried(f"{why}; {own.group(0)[:200]}") if own else NotSent(why)


class NoBackend(Exception):
    """The backend is not there on this node; the message is a clause that names what is missing."""


@dataclasses.dataclass(frozen=True)
class Rail:
    """One rail of this node: addresses of both ends, the interface that has ``own``, the RDMA device and the GPU.

    ``gpu``: the number of the GPU's slot, 3 for "gpu3", or unless it is ``named`` its place among the GPUs that answer,
    in the order of their slots; None for a rail that is no GPU's own.
    """

    name: str
    own: str
    other: str
    interface: str = ""
    device: str = ""
    gpu: int | None = None
    named: bool = True


@dataclasses.dataclass(frozen=True)
class Step:
    """One transfer: its timed seconds, warm-up seconds, number of flows, and the payload's seed."""

    seconds: float
    warmup_s: float
    streams: int
    seed: int
    connect_s: float

    @property
    def limit_s(self) -> float:
        """Seconds after which a transfer that has not ended is given up."""
        return self.connect_s + self.warmup_s + self.seconds + 5.0


@dataclasses.dataclass(frozen=True)
class Transfer:
    """What arrived: Gb/s, wrong bytes (None if the backend does not check), and why nothing arrived.

    ``missed``: nothing was tried over this rail, so there is no rate, not even 0.
    """

    rate: float
    wrong: int | None = None
    trouble: str = ""
    missed: bool = False


class Receiver(abc.ABC):
    """The receiving end of one transfer, open before the sender is told."""

    endpoint: Endpoint

    @abc.abstractmethod
    def result(self) -> Transfer:
        """Waits for the transfer's end. Raises NotSent."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends whatever still runs."""


class Backend(abc.ABC):
    """One way of sending."""

    name: str

    def gpu(self, rail: Rail) -> str:
        """The GPU that the rail is measured with, "" for none."""
        return ""

    @abc.abstractmethod
    def receive(self, rail: Rail, step: Step) -> Receiver:
        """Opens the receiving end; of several rails in a thread each. Raises NotSent."""

    @abc.abstractmethod
    def send(self, rail: Rail, endpoint: Endpoint, step: Step) -> float | None:
        """Sends, and returns Gb/s where only the sender knows it. Raises NotSent."""
