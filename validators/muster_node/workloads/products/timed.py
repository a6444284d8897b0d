"""Timed matrix products of one shape on one device, block by block, with the caches flushed before each product."""

from __future__ import annotations

from typing import Any, Callable

from muster_node.hardware.seam import Compute, Timing
from muster_node.workloads.common import FORMATS, MIB, right_operand

BLOCK_S = {"cpu": 0.02, "gpu": 0.05}
"""Seconds of a block: far more than the clock's resolution and the cost of synchronising."""
BUSY_BLOCK_S = 0.1
"""Seconds of a block that keeps a GPU busy between two synchronisations, and is short enough to show a dip."""
_FLUSHES = 8
_TIMINGS = 3
_TINY_S = 1e-9

Shape = tuple[int, int, int]
"""m, n, k."""


class Products:
    """Products of normal random matrices of a fixed seed.

    ``flush_mib``: what is overwritten before each product, so that no operand is still in a cache; how long that takes
    is measured by itself before each series of blocks, and taken off.
    """

    def __init__(self, torch: Any, compute: Compute, dtype: str, shape: Shape, seed: int, flush_mib: float) -> None:
        self._compute, self._shape = compute, shape
        self._a, self._b = normal_operands(torch, compute, dtype, shape, seed)
        self._flushed: Any | None = None
        self._flush_bytes, self._flush_s = int(flush_mib * MIB), 0.0
        if self._flush_bytes:
            self._flushed = torch.empty(
                compute.physical(self._flush_bytes), dtype=torch.int8, device=compute.torch_device
            )
        self._product()  # the first product and flush plan and allocate
        self._flush()
        self.per_block = 1

    @property
    def flop(self) -> float:
        """Floating-point operations of one product, 2·m·n·k."""
        m, n, k = self._shape
        return 2.0 * m * n * k

    def block(self) -> Timing:
        """``per_block`` products, one after another; the seconds are those of the products alone."""
        with self._compute.timer() as timing:
            for _ in range(self.per_block):
                self._flush()
                self._product()
        timing.seconds = max(timing.seconds - self.per_block * self._flush_s, _TINY_S)
        return timing

    def blocks(self, seconds: float, at_least: int) -> list[Timing]:
        """Blocks until they come to ``seconds`` of products. To be called when all devices have started."""
        if self._flushed is not None:
            self._flush_s = least_s(self._compute, self._flush, _FLUSHES)
        self.per_block = products_in(BLOCK_S[self._compute.device.kind], least_s(self._compute, self._product))
        timings: list[Timing] = []
        while len(timings) < at_least or sum(timing.seconds for timing in timings) < seconds:
            timings.append(self.block())
        return timings

    def _product(self) -> None:
        self._compute.matmul(self._a, self._b, nominal=self._shape)

    def _flush(self) -> None:
        if self._flushed is not None:
            self._flushed.zero_()
            self._compute.touch(self._flushed, nominal_bytes=self._flush_bytes)


def least_s(compute: Compute, work: Callable[[], Any], times: int = 1) -> float:
    """Device seconds of ``work``, by the least of several timings of so many: whatever another device's start or a busy
    host holds up only lengthens one.
    """
    seconds = []
    for _ in range(_TIMINGS):
        with compute.timer() as timing:
            for _ in range(times):
                work()
        seconds.append(timing.seconds / times)
    return min(seconds)


def products_in(seconds: float, each_s: float) -> int:
    """How many products that take ``each_s`` device seconds each fill ``seconds``; at least one."""
    return max(1, round(seconds / max(each_s, _TINY_S)))


def normal_operands(torch: Any, compute: Compute, dtype: str, shape: Shape, seed: int) -> list[Any]:
    """Both factors of a product, of normal random numbers: zeros or ones would draw less power and so run faster."""
    m, n, k = shape
    generator = torch.Generator(device=compute.torch_device).manual_seed(seed)
    target = getattr(torch, FORMATS[dtype].torch_name)
    normals = [
        torch.randn(compute.physical(*sides), generator=generator, device=compute.torch_device)
        for sides in ((m, k), (k, n))
    ]
    a, b = (x.to(target) if target.is_floating_point else (x * 40).clamp(-127, 127).to(target) for x in normals)
    return [a, right_operand(b)]
