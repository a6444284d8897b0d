"""What several probes share: statistics of repeats, seeds, number formats of PyTorch, and which devices to test."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from muster_node.hardware.seam import Device, Hardware

GIB = 1024**3
MIB = 1024**2
_LLC_TIMES = 4
LEAST_SHARE = 0.5
"""Of a host's free memory, which is taken to go beyond its caches where less was asked for."""


@dataclasses.dataclass(frozen=True)
class Format:
    """A number format: PyTorch's name, bits, significand bits, and bits of a sum that its accumulator holds exactly.

    ``scale`` is by how many powers of two, up and down, an operand may be scaled, every product and sum still exact.
    Accumulators: fp32 behind tf32, bf16 and fp16; about 14 bits behind fp8 on Hopper, hence sums below 2^13.
    """

    torch_name: str
    bits: int
    significand: int
    exact_sum: int
    scale: int


FORMATS = {
    "fp64": Format("float64", 64, 53, 53, 300),
    "fp32": Format("float32", 32, 24, 24, 50),
    "tf32": Format("float32", 32, 11, 24, 50),
    "bf16": Format("bfloat16", 16, 8, 24, 50),
    "fp16": Format("float16", 16, 11, 24, 7),
    "fp8": Format("float8_e4m3fn", 8, 4, 13, 3),
    "int8": Format("int8", 8, 7, 31, 0),
}


def right_operand(b: Any) -> Any:
    """The right factor of products, laid out as their kernels want it: fp8 and int8 column by column, else as it is.

    For when operands are made: the same change within a timed product would be timed with it.
    """
    return b.t().contiguous().t() if b.element_size() == 1 else b


def accumulator_of(torch: Any, dtype: str) -> Any:
    """PyTorch's type of what products are summed in: they are compared in it, before any rounding."""
    return {"fp64": torch.float64, "int8": torch.int32}.get(dtype, torch.float32)


def best_devices(hardware: Hardware) -> list[Device]:
    """Every device of the best kind there is."""
    return hardware.devices("gpu") or hardware.devices("cpu")


def memory_gib(hardware: Hardware) -> dict[str, float]:
    """Device → all of its memory (GiB), of the GPUs that report it."""
    return {fact.device: fact.value for fact in hardware.inventory() if fact.name == "hbm_total" and fact.value}


def beyond_caches(hardware: Hardware) -> float:
    """Bytes that a host's caches cannot answer for: four times its last-level cache, as STREAM asks; 0 if unknown."""
    llc = [fact.value for fact in hardware.inventory() if fact.name == "cpu_llc" and fact.value]
    return _LLC_TIMES * llc[0] * MIB if llc else 0.0


def median(samples: Sequence[float]) -> float:
    """The median; raises statistics.StatisticsError on no samples."""
    return float(statistics.median(samples))


def spread(samples: Sequence[float]) -> float | None:
    """(p95 − p5) / median, None for fewer than two samples or a median of zero."""
    middle = median(samples)
    if len(samples) < 2 or middle == 0:
        return None
    return (quantile(samples, 0.95) - quantile(samples, 0.05)) / middle


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample below which ``share`` of them lie; raises IndexError on no samples."""
    ordered = sorted(samples)
    return float(ordered[round(share * (len(ordered) - 1))])


def drop_percent(samples: Sequence[float]) -> float | None:
    """Drop in percent from the median of the first third to that of the last; None below three samples."""
    third = len(samples) // 3
    if third == 0:
        return None
    first, last = median(samples[:third]), median(samples[-third:])
    return 100.0 * (1.0 - last / first) if first else None


def reason_of(error: BaseException) -> str:
    """The first line of an error: PyTorch's advice on debugging follows in further ones."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def seed_of(*parts: Any) -> int:
    """A seed of 62 bits that differs wherever any part differs, the same on every machine."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 2


@contextlib.contextmanager
def precision_of(torch: Any, dtype: str) -> Iterator[None]:
    """Lets fp32 products on GPUs use TF32 for dtype "tf32" only, and bf16 never reduce in less than fp32."""
    matmul = torch.backends.cuda.matmul
    before = (matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction)
    matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = dtype == "tf32", False
    try:
        yield
    finally:
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = before
