"""The parts of a step's time: waiting for input, compute, exposed communication, the update.

Device time of compute ends with the last gradient, when PyTorch's DDP hands its last bucket to the hook; the time until
all sums are there is exposed communication: waiting for slower ranks, and what no compute hides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from muster_node.hardware.seam import Clock, Compute


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """One step of one rank, in seconds of the machine's clock; ``compute`` is device time (on CPUs: CPU time)."""

    whole: float
    input: float
    compute: float
    exposed: float
    update: float
    loss: float


class Pace(Protocol):
    """Times the forward and backward passes of one step: ``begin``, ``gradients_ready``, ``end``."""

    def begin(self) -> None:
        """The batch is on the device."""

    def gradients_ready(self) -> None:
        """This rank's last gradient has been queued; not called where PyTorch does not tell (FSDP)."""

    def end(self) -> tuple[float, float]:
        """All sums are there. Returns (compute, exposed) in seconds."""


class HostPace:
    """On CPUs and simulated devices, whose own timer counts their work and not the time in which they wait.

    ``clock_mhz``: mean clock of the device in the last passes, None where it does not tell.
    """

    def __init__(self, compute: Compute, clock: Clock) -> None:
        self._compute, self._clock = compute, clock
        self._stack = contextlib.ExitStack()
        self._begun = 0.0
        self.clock_mhz: float | None = None
        self._timing: Any = None
        self._ready: float | None = None

    def begin(self) -> None:
        """Starts the device's timer."""
        self._ready = None
        self._begun = self._clock.now()
        self._timing = self._stack.enter_context(self._compute.timer())

    def gradients_ready(self) -> None:
        """Stops the device's timer: a simulated device is now as late as its work makes it."""
        self._stack.close()
        self._ready = self._clock.now()

    def end(self) -> tuple[float, float]:
        """Without the last gradient's time all that was not computed was waited for."""
        self._stack.close()
        now, self.clock_mhz = self._clock.now(), self._timing.mean_clock_mhz
        if self._ready is None:
            return self._timing.seconds, max(0.0, now - self._begun - self._timing.seconds)
        return self._timing.seconds, now - self._ready


class CudaPace:
    """By events on the stream of compute, so that nothing is synchronised within the step."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._marks: list[Any] = []

    def begin(self) -> None:
        """Marks the begin."""
        self._marks = [self._mark()]

    def gradients_ready(self) -> None:
        """Marks the end of the gradients' kernels queued so far."""
        self._marks.append(self._mark())

    def end(self) -> tuple[float, float]:
        """Waits for the device. Without the last gradient's mark (FSDP), all counts as compute: see ``exposed_of``."""
        self._marks.append(self._mark())
        self._torch.cuda.synchronize(self._device)
        begun, *between, ended = self._marks
        ready = between[-1] if between else ended
        return begun.elapsed_time(ready) / 1e3, ready.elapsed_time(ended) / 1e3

    def _mark(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(self._device))
        return event


def pace_of(torch: Any, compute: Compute, clock: Clock) -> Pace:
    """The pace for a device."""
    if compute.torch_device.type == "cuda":
        return CudaPace(torch, compute.torch_device)
    return HostPace(compute, clock)


Span = tuple[float, float]


def exposed_of(compute: Sequence[Span], communication: Sequence[Span]) -> tuple[float, float]:
    """(seconds of compute, seconds of communication that no compute hides) of kernels' (begin, end) in one trace.

    >>> exposed_of([(0, 4), (6, 8)], [(3, 7)])
    (6.0, 2.0)
    """
    busy = _covered(compute)
    return busy, max(0, _covered([*compute, *communication]) - busy)


def _covered(spans: Sequence[Span]) -> float:
    covered, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        covered += max(0, end - max(begin, until))
        until = max(until, end)
    return covered


def traced(torch: Any, meet: Callable[[], object], step: Callable[[], object]) -> tuple[float, float]:
    """``exposed_of`` of one step of CUDA kernels, by PyTorch's profiler; NCCL's kernels carry its name.

    ``meet`` returns once all ranks are there: a rank takes its own time to start the profiler and to read the trace
    before, and the others' communication must not contain that.
    """
    profiler = torch.profiler
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as trace:
        meet()
        step()
    compute: list[Span] = []
    communication: list[Span] = []
    for event in trace.events():
        if "cuda" in str(event.device_type).lower():
            span = (event.time_range.start / 1e6, event.time_range.end / 1e6)
            (communication if "nccl" in event.name.lower() else compute).append(span)
    return exposed_of(compute, communication)
