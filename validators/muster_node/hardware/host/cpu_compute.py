"""Compute on one logical CPU through PyTorch: single-threaded, timed by the CPU time of the thread.

CPU time corresponds to a GPU's device time: a slow clock or slow memory increases it, but time that the kernel gives to
another process on the core does not. ``cpu_time`` records what it hides: a core that gets hardly any time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from muster_node.hardware.host import cgroups, cpu_time, parse
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Device, Timing

# Without one of these, int8 products are summed in saturating 16-bit pairs and are not exact by design.
_INT8_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}


class CpuCompute(Compute):
    """Compute on one CPU. Making one pins the calling thread to it and makes PyTorch single-threaded in this process.

    Probes therefore make it inside ``Hardware.at_once``, whose workers are processes of their own.
    """

    def __init__(self, device: Device, files: Files, flags: Sequence[str]) -> None:
        self._torch = require_torch()
        self.device = device
        self.torch_device = self._torch.device("cpu")
        self._files = files
        self._flags = flags
        os.sched_setaffinity(0, {device.index})
        self._torch.set_num_threads(1)

    def matmul(self, a: Any, b: Any, *, nominal: tuple[int, int, int], out_dtype: Any = None) -> Any:
        """a @ b. CPUs ignore ``out_dtype`` for floats; the product's dtype is the actual one.

        int8 operands always give the int32 product.
        """
        if a.dtype == self._torch.int8:
            return self._torch._int_mm(a, b)
        return self._torch.mm(a, b)

    @contextlib.contextmanager
    def timer(self) -> Iterator[Timing]:
        """Seconds of CPU time that the block took, and the core's clock where the kernel reports it."""
        timing = Timing()
        before = self._clock_mhz()
        began, start = time.monotonic(), time.thread_time()
        yield timing
        timing.seconds = time.thread_time() - start
        cpu_time.timed.cpu_s += timing.seconds
        cpu_time.timed.wall_s += time.monotonic() - began
        after = self._clock_mhz()
        if before is not None and after is not None:
            timing.mean_clock_mhz = (before + after) / 2

    def _clock_mhz(self) -> float | None:
        khz = self._files.number(f"/sys/devices/system/cpu/cpu{self.device.index}/cpufreq/scaling_cur_freq")
        return khz / 1000.0 if khz else None

    def free_memory(self) -> int:
        """Bytes available to this process: what the kernel can give, or less where control groups limit it."""
        available = parse.parse_meminfo(self._files.text("/proc/meminfo")).get("MemAvailable", 0)
        return int(min(available, cgroups.free_memory(self._files)))

    def supports(self, dtype: str) -> bool:
        """fp64, fp32, bf16, fp16 always (the last two converted where the CPU lacks them); int8 where it is exact."""
        if dtype == "int8":
            return bool(_INT8_FLAGS.intersection(self._flags)) and hasattr(self._torch, "_int_mm")
        return dtype in ("fp64", "fp32", "bf16", "fp16")
