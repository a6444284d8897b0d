"""The hardware seam: device queries, device time, memory and the clock, as probes see them.

``open_hardware()`` opens this host (CPU, and GPUs through their vendor's folder and torch.cuda), or another
implementation that the node's environment names; no plan can request or hide that. A fault of simulated hardware
changes its physical state only; nothing behind this seam may change what is measured.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Callable, Protocol

from muster_node.hardware.workers import LATE_S, START_LIMIT_S, NotEnded, Threads

if TYPE_CHECKING:
    from muster_node.hardware.events import DeviceEvent

NOT_SUPPORTED = "not supported"
NO_PRIVILEGE = "no privilege"
"""Notes of a value that the machine does not have, and of one that this user may not read."""


@dataclasses.dataclass(frozen=True)
class Device:
    """A thing that can be tested. ``id`` is "cpu0", "gpu5"; ``index`` its number (GPUs: physical slot)."""

    id: str
    kind: str
    index: int


SCRATCH_DISK = Device("disk:scratch", "disk", 0)
"""The disk that scratch files lie on."""


@dataclasses.dataclass(frozen=True)
class Fact:
    """One item of the inventory or one cumulative counter; value (number) or text, or neither with a note."""

    name: str
    device: str
    unit: str
    value: float | None = None
    text: str | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One telemetry reading: a number in ``unit``, or a state (unit "state"). ``note``: what else it may be of."""

    series: str
    device: str
    unit: str
    value: float | None = None
    state: str | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class GpuUse:
    """One sentence for each foreign process on a GPU, and for each GPU of which they cannot be listed."""

    processes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Usage:
    """Use of the machine: foreign GPU processes, logged-in users, and load that is not ours.

    ``unknown``: what could not be read, which may be in use. ``busy_processes``: each begins "NAME (process PID)".
    """

    gpu_processes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    load_1min: float = 0.0
    cpu_count: int = 1
    busy_processes: tuple[str, ...] = ()


class Clock(abc.ABC):
    """The only source of time for probes. A simulated clock may run faster than real."""

    @abc.abstractmethod
    def now(self) -> float:
        """Monotonic seconds."""

    @abc.abstractmethod
    def wall(self) -> float:
        """Epoch seconds."""

    @abc.abstractmethod
    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds`` of this clock."""


class RealClock(Clock):
    """The clock of the host that this process runs on."""

    def now(self) -> float:
        """Monotonic seconds, the same in all processes."""
        return time.monotonic()

    def wall(self) -> float:
        """Epoch seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Really wait."""
        time.sleep(seconds)


@dataclasses.dataclass
class Timing:
    """Filled in when a ``Compute.timer`` block ends: device seconds (on CPUs: CPU time), and its pace where known."""

    seconds: float = 0.0
    mean_clock_mhz: float | None = None
    mean_power_w: float | None = None
    mean_core_c: float | None = None


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A copy into or out of a device. ``direction``: "h2d", "d2h" (the other end is host memory) or "peer".

    ``peer`` is the device that the bytes come from where that is not the host.
    """

    direction: str
    target: Any
    source: Any
    peer: Device | None = None


@dataclasses.dataclass(frozen=True)
class CpuTime:
    """What the CPU loads of this process got. Timed work by CPU, in seconds by the wall clock and of CPU time.

    ``stolen_s``, ``others_s``: seconds that other machines of the host and other processes had these CPUs meanwhile,
    None if unknown. ``held_s``: seconds that a control group's quota held the load back, over all CPUs, None where none
    is counted; ``throttled_periods`` of ``periods`` with a quota. ``quota``: the tightest, in CPUs, None without one.
    ``cpus``: CPUs that were loaded at once.
    """

    wall_s: dict[str, float]
    cpu_s: dict[str, float]
    stolen_s: float | None
    others_s: float | None
    held_s: float | None
    throttled_periods: int
    periods: int
    quota: float | None
    cpus: int


class Compute(abc.ABC):
    """Compute on one device, through PyTorch: tensors live in ``torch_device``, work is timed by the device.

    On simulated devices kernels run for real, on the CPU, at a small physical shape; device time is the model's
    time for the *nominal* work. Probes therefore size their tensors with ``physical`` and pass the nominal work.
    """

    device: Device
    torch_device: Any

    def physical(self, *shape: int) -> tuple[int, ...]:
        """The shape to allocate for a nominal shape: the same on real hardware, capped on simulated hardware."""
        return shape

    @abc.abstractmethod
    def matmul(self, a: Any, b: Any, *, nominal: tuple[int, int, int], out_dtype: Any = None) -> Any:
        """a @ b on the device, accounted as 2·m·n·k FLOP of ``nominal`` (m, n, k) in a's dtype; returns the product."""

    def copy(self, target: Any, source: Any, *, nominal_bytes: int) -> None:
        """Device-to-device copy, accounted as ``nominal_bytes`` read and as many written."""
        target.copy_(source)

    def touch(self, tensor: Any, *, nominal_bytes: int) -> Any:
        """Account for elementwise traffic that the probe did on ``tensor``; returns it. Real traffic needs none."""
        return tensor

    def host_buffer(self, elements: int) -> Any:
        """Host memory of int64 words for transfers: near the device, and where it can be, such that it reaches it
        without the CPU's help (page-locked). CPUs have none: their memory is the host's."""
        raise NotImplementedError

    def transfer(self, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        """Copies of ``nominal_bytes`` each between this device and the host or its peers, all under way at once."""
        raise NotImplementedError

    @abc.abstractmethod
    def timer(self) -> AbstractContextManager[Timing]:
        """Times the work queued inside the block, with synchronisation at both ends."""

    @abc.abstractmethod
    def free_memory(self) -> int:
        """Bytes of device memory that may be allocated."""

    def supports(self, dtype: str) -> bool:
        """Whether "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8" matmul exists on this device."""
        raise NotImplementedError


class Collective(abc.ABC):
    """One collective between all GPUs of a machine that one process drives. ``carried``: the algorithm and transport
    that carry it.
    """

    carried: str

    @abc.abstractmethod
    def run(self) -> list[float]:
        """Run it once; device seconds by GPU, each until it has all of its part."""

    @abc.abstractmethod
    def wrong(self) -> list[int]:
        """Elements that differ from the exact result, by GPU."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """One of ``count`` workers that run at once. ``ready()`` is a start signal: it returns once all have called it."""

    device: Device
    index: int
    count: int
    ready: Callable[[], Any]


Late = Callable[[Device, str], Any]
"""What stands for the result of a worker that did not end, from its device and the reason."""


class EventSource(Protocol):
    """Device events as they happen, by another way than the kernel log: ``name`` is what it is called.

    ``refused``: by device, why its events are not seen; ``trouble``: why a reading broke off, "" if none did.
    """

    name: str
    refused: dict[str, str]
    trouble: str

    def read(self) -> list[DeviceEvent]:
        """The events since the last reading, without waiting for any."""

    def close(self) -> None:
        """Ends the registration."""


class Hardware(abc.ABC):
    """One machine.

    ``clock`` is the machine's time, and the one to measure it by. ``host_clock`` is always real time: for limits on
    what is real for a simulated machine too, that is, the network and processes on other hosts. ``start_limit_s``
    and ``late_s``: real seconds after which a worker of ``at_once`` hangs.
    """

    simulated: bool
    clock: Clock
    host_clock: Clock = RealClock()
    start_limit_s: float = START_LIMIT_S
    late_s: float = LATE_S

    @abc.abstractmethod
    def devices(self, kind: str) -> list[Device]:
        """Devices of a kind that answer, in slot order: "cpu" (every logical CPU), "core" (of these, one for each
        physical core), "gpu", "disk" (the one that scratch files lie on)."""

    @abc.abstractmethod
    def boot_id(self) -> str:
        """The kernel's boot id; changes at every boot."""

    @abc.abstractmethod
    def inventory(self) -> Iterable[Fact]:
        """Everything that intake compares with the SKU file."""

    @abc.abstractmethod
    def counters(self) -> Iterable[Fact]:
        """Cumulative counters (machine checks, EDAC, ECC, replay, device events, throttle time), to be differenced."""

    def port_counters(self) -> Iterable[Fact]:
        """Of ``counters`` the "ib_errors" of ports alone, which are read while GPUs work."""
        return ()

    def port_links(self) -> Mapping[str, bool]:
        """Whether each port has a link, by its device; one whose state cannot be read is left out."""
        return {}

    def states(self) -> Iterable[Fact]:
        """States and counters of each GPU that a load may change, by the inventory's and the counters' names: they are
        read again and again while it lasts. Also "utilisation", "clock_share", "foreign_processes" and "gpu_lost"."""
        return ()

    def domain(self) -> Iterable[Fact]:
        """Of the inventory, what says with which GPUs of other machines those of this one exchange data directly:
        "nvlink_domain", "fabric_state" and "fabric_healthy" of each, and "imex" of the node."""
        return ()

    @abc.abstractmethod
    def telemetry(self) -> Iterable[Sample]:
        """One reading of every sensor there is: temperature, power, clock, fan, utilisation, throttle state."""

    @abc.abstractmethod
    def usage(self) -> Usage:
        """Who uses the machine now."""

    @abc.abstractmethod
    def kernel_log(self) -> list[str] | None:
        """Lines of the kernel log, oldest first; None where it cannot be read."""

    def event_source(self) -> EventSource | None:
        """Device events from now on, not by the kernel log; None where it is readable, or nothing else is there."""
        return None

    @abc.abstractmethod
    def compute(self, device: Device) -> Compute:
        """Compute on a device. Raises muster_node.probe.Skip where PyTorch or the device is missing."""

    def release_gpus(self) -> None:
        """Give up the driver's library, to call before a fork whose processes ask for GPUs: what it holds serves one
        process only. The next call opens it again, in this process or a new one.
        """
        return

    def collective(self, op: str, elements: int, seed: int) -> Collective | None:
        """A collective of ``elements``, a multiple of the number of GPUs, whose payload is drawn from ``seed``; None
        where NCCL runs one process a GPU."""
        return None

    def restore_setting(self, device: str, setting: str, facts: Sequence[Fact]) -> str:
        """Restore a clock, limit or mode of a GPU to the values of these inventory facts, all of that name.

        Returns why it could not be done; "" where it was.
        """
        return "nothing can be set on this machine"

    def simulate_reset(self, serial: str) -> str:
        """Reset a GPU of a simulated machine; returns why it was not reset, "" if it was. Real ones take commands."""
        return "this machine is real: nothing is reset here by a simulator"

    def at_once(
        self,
        devices: list[Device],
        work: Callable[[Worker], Any],
        tick: Callable[[], None] | None = None,
        tick_s: float = 1.0,
        late: Late | None = None,
        takes_s: float | None = None,
    ) -> list[Any]:
        """Run ``work`` on all ``devices`` at the same time and return what each returned, in order.

        ``tick`` is called meanwhile in the caller, every ``tick_s`` seconds of the clock. The first exception of a
        worker is raised here. Work must be bounded by the clock or a count, and must return plain values: on CPUs each
        worker is a forked process pinned to its CPU (``cpu_workers``), elsewhere a thread of this process. A thread
        that runs ``late_s`` longer than ``takes_s``, or without that than twice the first one that did its work, hangs:
        ``late`` makes its result; without it, TimeoutError is raised. Failed work returns one with an ``error``.
        """

        def of(index: int) -> Callable[[Callable[[], Any]], Any]:
            return lambda ready: work(Worker(devices[index], index, len(devices), ready))

        workers = Threads([of(index) for index in range(len(devices))], self.start_limit_s, takes_s)
        while workers.running() and not workers.overdue(self.late_s):
            if tick is None:
                workers.join()
                continue
            tick()
            self.clock.sleep(tick_s)
        results = workers.results()
        for device, (place, result) in zip(devices, enumerate(results)):
            if isinstance(result, NotEnded):
                why = f"{device.id} hangs: its work did not end within {result.after_s:.0f} s"
                if late is None:
                    raise TimeoutError(why)
                results[place] = late(device, why)
        return results

    def cpu_time(self) -> CpuTime | None:
        """What CPU loads of this process got so far; None without any, and on simulated hardware."""
        return None

    def lost(self, device: Device) -> bool:
        """Whether the driver reports a GPU as lost (fallen off the bus), or refuses to use it until it is reset. False
        where it does not answer at all.
        """
        return False

    def loading(self, devices: list[Device]) -> AbstractContextManager[None]:
        """Marks devices as under sustained load for the block; the simulated model heats them, real ones ignore it."""
        return contextlib.nullcontext()
