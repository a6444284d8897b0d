"""Compute on a simulated GPU: kernels run for real on the CPU at a small shape, device time comes from the model.

The work of a block is counted in SM cycles and bytes of the nominal shapes; the clock that the model held meanwhile
turns it into seconds. A marginal lane, an execution unit that is wrong and a dead memory cell touch the buffer that a
kernel has written, as they would on the device.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from muster_node.hardware.seam import Compute, Device, Timing, Transfer
from muster_node.probe import Skip
from muster_simulator import links
from muster_simulator.machine import Gpu
from muster_simulator.state import Reading

if TYPE_CHECKING:
    from muster_simulator.hardware import SimulatedHardware

_RUN_NOISE = 0.003
_UPSET_ELEMENTS = 4
_VECTOR_DTYPES = ("fp32",)
"""Dtypes whose GEMM does not run on tensor cores."""


class SimulatedCompute(Compute):
    """One simulated GPU, in a process that has PyTorch. Not for use by two threads at once."""

    def __init__(self, hardware: SimulatedHardware, device: Device, gpu: Gpu, noise: random.Random) -> None:
        try:
            import torch
        except ImportError as error:
            raise Skip(f"PyTorch cannot be imported here: {error}") from error
        # The physical shapes are far too small to share between threads, and the host belongs to other nodes too.
        torch.set_num_threads(1)
        self.device = device
        self.torch_device = torch.device("cpu")
        self._torch = torch
        self._hardware = hardware
        self._gpu = gpu
        self._dice = noise
        self._megacycles = 0.0
        self._seconds = 0.0
        self._integer_of = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        self._dtype_names = {
            torch.float64: "fp64",
            torch.bfloat16: "bf16",
            torch.float16: "fp16",
            torch.int8: "int8",
            torch.float8_e4m3fn: "fp8",
            torch.float8_e5m2: "fp8",
        }

    def physical(self, *shape: int) -> tuple[int, ...]:
        """The nominal shape, cut down: 1-D buffers in length, matrices in every dimension."""
        machine = self._hardware.machine
        largest = machine.kernel_elements if len(shape) == 1 else machine.kernel_edge
        return tuple(min(extent, largest) for extent in shape)

    def matmul(self, a: Any, b: Any, *, nominal: tuple[int, int, int], out_dtype: Any = None) -> Any:
        """The real product of the small operands, accumulated in fp32 (fp64: fp64; int8: int32) as tensor cores do."""
        torch = self._torch
        m, n, k = nominal
        name = self._name(a.dtype)
        wide = torch.float64 if a.dtype in (torch.float64, torch.int8) else torch.float32
        product = a.to(wide) @ b.to(wide)
        out = product.to(out_dtype or (torch.int32 if a.dtype == torch.int8 else a.dtype)).contiguous()
        per_clock = self._hardware.machine.model.work_per_clock[name] * 1e9 * self._gpu.lanes
        self._megacycles += 2.0 * m * n * k / per_clock
        if name not in _VECTOR_DTYPES:
            self._upset(out)
            self._stick(out)
        return out

    def copy(self, target: Any, source: Any, *, nominal_bytes: int) -> None:
        """A real copy of the small buffers, accounted as ``nominal_bytes`` read and as many written."""
        target.copy_(source)
        self._hold(target)
        self._move(2 * nominal_bytes)

    def touch(self, tensor: Any, *, nominal_bytes: int) -> Any:
        """Account for ``nominal_bytes`` of traffic in all; returns ``tensor``."""
        self._hold(tensor)
        self._move(nominal_bytes)
        return tensor

    def host_buffer(self, elements: int) -> Any:
        """A small buffer of the real host, in place of the modelled one's."""
        return self._torch.empty(self.physical(elements), dtype=self._torch.int64)

    def transfer(self, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        """Real copies of the small buffers; they end when the slowest of them has crossed its link."""
        for one in transfers:
            one.target.copy_(one.source)
            if one.direction != "d2h":  # the host's memory is not this GPU's
                self._hold(one.target)
        both_ways = len({one.direction for one in transfers}) > 1
        self._seconds += links.LATENCY_S
        self._seconds += max(nominal_bytes / self._link_rate(one, both_ways) for one in transfers)

    @contextlib.contextmanager
    def timer(self) -> Iterator[Timing]:
        """Time the block's work; the GPU is busy meanwhile, and the clock advances by at least that time."""
        timing = Timing()
        self._megacycles = self._seconds = 0.0
        with self._hardware.loading([self.device]):
            begun = self._reading()
            yield timing
            ended = self._reading()
            noise = 1.0 + self._dice.gauss(0.0, _RUN_NOISE)
            seconds = self._device_seconds(begun, ended) * noise
            if seconds > ended.at - begun.at:
                self._hardware.clock.sleep(seconds - (ended.at - begun.at))
                ended = self._reading()
                seconds = self._device_seconds(begun, ended) * noise
        elapsed = ended.at - begun.at
        timing.seconds = seconds
        timing.mean_clock_mhz = _mean(ended.megacycles - begun.megacycles, elapsed, ended.clock_mhz)
        timing.mean_power_w = _mean(ended.joules - begun.joules, elapsed, ended.power_w)
        timing.mean_core_c = (round(begun.core_c) + round(ended.core_c)) / 2  # sensors report whole degrees

    def free_memory(self) -> int:
        """Bytes of the modelled HBM that a process may have; the driver keeps some."""
        return int(self._hardware.machine.model.hbm_bytes * 0.98)

    def supports(self, dtype: str) -> bool:
        """Whether the modelled GPU multiplies this dtype."""
        return dtype in self._hardware.machine.model.work_per_clock

    def _device_seconds(self, begun: Any, ended: Any) -> float:
        clock = _mean(ended.megacycles - begun.megacycles, ended.at - begun.at, ended.clock_mhz)
        return self._megacycles / clock + self._seconds

    def _reading(self) -> Reading:
        """The GPU's progress. Raises RuntimeError, as PyTorch does, if it has fallen off the bus."""
        reading = self._hardware.reading(self.device)
        if reading.lost:
            raise RuntimeError("CUDA error: GPU is lost")
        return reading

    def _move(self, nominal_bytes: int) -> None:
        self._seconds += nominal_bytes / (self._hardware.machine.model.hbm_rate * self._gpu.memory_rate)

    def _link_rate(self, transfer: Transfer, both_ways: bool) -> float:
        machine = self._hardware.machine
        if transfer.peer is None:
            return links.host_rate(machine.model, self._gpu, both_ways)
        return links.peer_rate(machine.model, self._gpu, machine.gpus[transfer.peer.index])

    def _name(self, dtype: Any) -> str:
        if dtype == self._torch.float32:
            return "tf32" if self._torch.backends.cuda.matmul.allow_tf32 else "fp32"
        if dtype not in self._dtype_names:
            raise Skip(f"{self.device.id} has no matrix product in {dtype}")
        return self._dtype_names[dtype]

    def _upset(self, out: Any) -> None:
        gpu = self._gpu
        if gpu.upset_rate <= 0.0 or self._dice.random() >= gpu.upset_rate:
            return
        words, mask = self._words(out, gpu.upset_bit)
        for lane in range(_UPSET_ELEMENTS):
            words[(gpu.upset_first + lane * gpu.upset_stride) % words.numel()] ^= mask

    def _stick(self, out: Any) -> None:
        """The elements of one execution unit, with the bit that it always sets."""
        if self._gpu.stuck_output_bit >= 0:
            words, mask = self._words(out, self._gpu.stuck_output_bit)
            words[:: self._gpu.stuck_output_every] |= mask

    def _hold(self, buffer: Any) -> None:
        """Change the buffer as a dead memory cell does; the cell lies in large buffers, those that were cut down."""
        gpu = self._gpu
        if gpu.stuck_cell_bit < 0 or buffer.numel() < self._hardware.machine.kernel_elements:
            return
        words, mask = self._words(buffer, gpu.stuck_cell_bit)
        cell = gpu.stuck_cell_word % words.numel()
        words[cell] = words[cell] | mask if gpu.stuck_cell_level else words[cell] & ~mask

    def _words(self, buffer: Any, bit: int) -> tuple[Any, int]:
        """A buffer as integers, and the mask of one bit of them (counted round where they have fewer)."""
        size = buffer.element_size()
        bit %= 8 * size
        # The topmost bit of a signed word has no positive value.
        return buffer.view(-1).view(self._integer_of[size]), -(1 << bit) if bit == 8 * size - 1 else 1 << bit


def _mean(total: float, elapsed: float, otherwise: float | None) -> float:
    """The mean rate over the block, or the current rate where no time passed between the readings."""
    return total / elapsed if elapsed > 0 else otherwise or 0.0
