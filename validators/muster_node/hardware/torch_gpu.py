"""Compute on one GPU through torch.cuda, which AMD's HIP build of PyTorch has too, timed by the device's own events."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Device, Timing, Transfer
from muster_node.probe import Skip


@dataclasses.dataclass(frozen=True)
class Card:
    """A GPU as its vendor's library knows it. ``uuid``: as PyTorch reports it too, with or without "GPU-" before it;
    ``order``: its place on the bus; ``pci``: its address, "" where unknown; ``twins``: GPUs that report the same UUID.
    """

    uuid: str
    order: int
    pci: str
    twins: tuple[str, ...]


class Pace(NamedTuple):
    """SM clock in MHz, power in W and core temperature in °C at one moment, each None where unknown."""

    clock_mhz: float | None
    power_w: float | None
    core_c: float | None


Paced = Callable[[], Pace]

Near = Callable[[], frozenset[int]]
"""The logical CPUs closest to a GPU; empty where unknown."""

_PACE_INTERVAL_S = 0.02
_IDLE_S = 2.0  # after so long without timed work the sampling thread ends
_POLL_S = 0.001  # a GPU rests from the end of one block until that is noticed and the next one is queued
# Compute capability from which on tensor cores multiply the dtype.
_SINCE = {"fp64": (0, 0), "fp32": (0, 0), "fp16": (7, 0), "int8": (7, 5), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}
_FP8_OF_AMD = (9, 5)  # earlier ones have an FP8 of their own (fnuz), and refuse OCP's e4m3
_NO_WIDE_PRODUCT = "output type float is not supported for ROCm"  # HIPBlas.cpp of PyTorch 2.8 (its issue 154221)


class CudaCompute(Compute):
    """One GPU, found among torch's devices by its UUID. ``pace`` is read while work runs; ``near`` returns its CPUs.

    Raises Skip where PyTorch does not see it, RuntimeError where several GPUs claim its UUID and no address tells them
    apart: the work of one must never be taken for that of another.
    """

    def __init__(self, device: Device, gpu: Card, pace: Paced, near: Near = frozenset) -> None:
        self._torch = _torch_with_cuda()
        self.device = device
        self._index = _cuda_index(self._torch, gpu)
        self.torch_device = self._torch.device("cuda", self._index)
        self._sampler, self._near = _PaceSampler(pace), near
        self._streams: list[Any] = []
        self._one: Any = None  # the scale of fp8 products, made once: a kernel of its own within each would be timed
        self._widens = True  # until PyTorch refuses: products of one device must not come in two formats
        # Partial sums in the operands' own precision would be neither exact nor what frameworks use for training.
        matmul = self._torch.backends.cuda.matmul
        matmul.allow_bf16_reduced_precision_reduction = False
        matmul.allow_fp16_reduced_precision_reduction = False

    def matmul(self, a: Any, b: Any, *, nominal: tuple[int, int, int], out_dtype: Any = None) -> Any:
        """a @ b. PyTorch before 2.8, and for ROCm some later ones, ignore ``out_dtype``; the product's dtype is the
        actual one.

        int8 gives int32; fp8 gives ``out_dtype`` or bf16, unscaled.
        """
        torch = self._torch
        if a.dtype == torch.int8:
            return torch._int_mm(a, b)
        if a.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            if self._one is None:
                self._one = torch.ones((), device=self.torch_device, dtype=torch.float32)
            # The fp8 kernels want the right operand column by column. Probes lay it out so when they make it.
            columns = b if b.stride(0) == 1 else b.t().contiguous().t()
            scales = {"scale_a": self._one, "scale_b": self._one}
            product = torch._scaled_mm(a, columns, **scales, out_dtype=out_dtype or torch.bfloat16)
            return product[0] if isinstance(product, tuple) else product  # PyTorch 2.4 also returns the largest value
        if self._widens and out_dtype is not None and out_dtype != a.dtype:
            try:
                return torch.mm(a, b, out_dtype=out_dtype)
            except TypeError:
                self._widens = False
            except RuntimeError as error:
                if _NO_WIDE_PRODUCT not in str(error):
                    raise
                self._widens = False
        return torch.mm(a, b)

    def host_buffer(self, elements: int) -> Any:
        """Page-locked memory of the GPU's own NUMA node: memory behind the other socket is slower to reach."""
        with _running_on(self._near()):
            return self._torch.empty(elements, dtype=self._torch.int64, pin_memory=True)

    def transfer(self, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        """Each copy on a stream of its own, since one stream's copies run one after the other.

        A copy from a peer is ordered after the work of both devices' current streams by PyTorch itself.
        """
        cuda = self._torch.cuda
        with cuda.device(self._index):
            self._streams += [cuda.Stream() for _ in transfers[len(self._streams) :]]
            current = cuda.current_stream()
            for stream, one in zip(self._streams, transfers):
                stream.wait_stream(current)
                with cuda.stream(stream):
                    one.target.copy_(one.source, non_blocking=True)
            for stream, _ in zip(self._streams, transfers):
                current.wait_stream(stream)

    @contextlib.contextmanager
    def timer(self) -> Iterator[Timing]:
        """Times the block by device events; clock, power and temperature are means of what was read meanwhile.

        The block never waits for a sensor: a reading that is not there when the work is done is dropped.
        """
        cuda, timing = self._torch.cuda, Timing()
        with cuda.device(self._index):
            begun, ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda.synchronize()
            with self._sampler.sampling() as paces:
                begun.record()
                yield timing
                ended.record()
                while not ended.query():
                    time.sleep(_POLL_S)
                ended.synchronize()
        timing.seconds = begun.elapsed_time(ended) / 1000.0
        timing.mean_clock_mhz = _mean([pace.clock_mhz for pace in paces])
        timing.mean_power_w = _mean([pace.power_w for pace in paces])
        timing.mean_core_c = _mean([pace.core_c for pace in paces])

    def free_memory(self) -> int:
        """Bytes that the driver can still allocate."""
        return int(self._torch.cuda.mem_get_info(self._index)[0])

    def supports(self, dtype: str) -> bool:
        """By compute capability."""
        since = _FP8_OF_AMD if dtype == "fp8" and self._torch.version.hip else _SINCE.get(dtype, (math.inf,))
        return tuple(self._torch.cuda.get_device_capability(self._index)) >= since


class _PaceSampler:
    """Reads a GPU's pace in a thread of its own: libraries serialise their calls, and each may take milliseconds."""

    def __init__(self, pace: Paced) -> None:
        self._pace = pace
        self._lock = threading.Lock()
        self._taken: list[Pace] | None = None
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def sampling(self) -> Iterator[list[Pace]]:
        """The readings that began and ended within the block."""
        taken: list[Pace] = []
        with self._lock:
            self._taken = taken
            if self._thread is None:
                self._thread = threading.Thread(target=self._sample, name="pace", daemon=True)
                self._thread.start()
            self._wanted.set()
        try:
            yield taken
        finally:
            with self._lock:
                self._taken = None
                self._wanted.clear()

    def _sample(self) -> None:
        while True:
            if not self._wanted.wait(_IDLE_S):
                with self._lock:
                    if self._taken is None:  # the next block starts another thread
                        self._thread = None
                        return
                continue
            taken = self._taken
            if taken is not None:
                pace = self._pace()
                with self._lock:
                    if taken is self._taken:
                        taken.append(pace)
            time.sleep(_PACE_INTERVAL_S)


@contextlib.contextmanager
def _running_on(cpus: frozenset[int]) -> Iterator[None]:
    """Keeps this thread on such of these CPUs as it may use: memory comes from the NUMA node of the allocating CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before & cpus or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _torch_with_cuda() -> Any:
    torch = require_torch()
    if not torch.cuda.is_available():
        raise Skip(f"PyTorch {torch.__version__} cannot use a GPU here (a CPU build, or a driver that it does not fit)")
    return torch


def _cuda_index(torch: Any, gpu: Card) -> int:
    """torch's number of the GPU: CUDA orders and hides devices in its own way, so the UUID decides; where several GPUs
    claim it, the PCI address.

    PyTorch before 2.5 reports no UUID; then the numbers agree only if CUDA shows every GPU in bus order.
    """
    seen = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    uuids = [str(getattr(each, "uuid", "")).replace("GPU-", "", 1).lower() for each in seen]
    wanted = gpu.uuid.replace("GPU-", "", 1).lower()
    alike = [index for index, found in enumerate(uuids) if found and found == wanted]
    if gpu.twins or len(alike) > 1:
        there = [index for index in alike if gpu.pci and _address(seen[index]) == _place(gpu.pci)]
        if len(there) != 1:
            others = ", ".join(gpu.twins) or "another GPU"
            raise RuntimeError(f"{others} reports the same UUID {gpu.uuid}, so PyTorch cannot select it")
        return there[0]
    if alike:
        return alike[0]
    if not any(uuids) and gpu.order < len(seen):
        return gpu.order
    raise Skip(f"PyTorch does not see the GPU {gpu.uuid} (a control group may hide it)")


def _address(properties: Any) -> tuple[int, int, int] | None:
    """Domain, bus and device on PCI, where PyTorch reports them."""
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return None if any(part is None for part in parts) else (int(parts[0]), int(parts[1]), int(parts[2]))  # type: ignore[arg-type]


def _place(pci: str) -> tuple[int, int, int] | None:
    """The same of an address as NVML writes it ("00000000:1B:00.0")."""
    try:
        domain, bus, rest = pci.split(":")
        return int(domain, 16), int(bus, 16), int(rest.partition(".")[0], 16)
    except ValueError:
        return None


def _mean(readings: list[float | None]) -> float | None:
    known = [reading for reading in readings if reading is not None]
    return sum(known) / len(known) if known else None
