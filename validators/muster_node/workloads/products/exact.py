"""Integer operands whose product is exact in the number format under test, and that product.

Operands are integers with K·Amax² below what the accumulator holds exactly, their rows and columns scaled by random
powers of two. Nothing here looks at a device's answer but ``different_bits``.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable

from muster_node.hardware.seam import Compute
from muster_node.workloads.common import FORMATS, accumulator_of, right_operand

_BIT_VIEWS = {8: "int64", 4: "int32", 2: "int16", 1: "int8"}
_LIMB_BITS = 7  # a signed limb of 7 bits fits int8, and 2^17 products of two fit int32


@dataclasses.dataclass(frozen=True)
class Operands:
    """Integer matrices, the exponents that scale their rows and columns, and both combined in the format under test."""

    dtype: str
    integers: tuple[Any, Any]
    exponents: tuple[Any, Any]
    scaled: tuple[Any, Any]

    def expected(self, torch: Any, out_dtype: Any) -> Any:
        """The exact product, rounded once to ``out_dtype``."""
        exact = exact_product(torch, *self.integers, self.dtype)
        if not out_dtype.is_floating_point:
            return exact.to(out_dtype)
        rows, columns = (power_of_two(torch, exponents) for exponents in self.exponents)
        return (exact.double() * rows[:, None] * columns[None, :]).to(out_dtype)


def fitting_shape(dtype: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """``shape`` (m, n, k) with K cut to what operands of −1, 0 and 1 may sum up to: 2^13 for fp8."""
    m, n, k = shape
    return m, n, min(k, 1 << FORMATS[dtype].exact_sum)


def operand_limit(dtype: str, k: int) -> int:
    """Amax: the largest integer with K·Amax² exact in the accumulator and Amax itself exact in the format."""
    number_format = FORMATS[dtype]
    return max(1, min((1 << number_format.significand) - 1, math.isqrt(((1 << number_format.exact_sum) - 1) // k)))


def exponent_limits(dtype: str, k: int, limit: int) -> tuple[int, int]:
    """Lowest and highest power of two by which a row or column may be scaled with every result normal and finite."""
    scale = FORMATS[dtype].scale
    if dtype != "fp16":
        return -scale, scale
    # Results must stay within 2^-14 (normal) and 2^16 (finite): the sum's own bits leave the rest for the exponents.
    return -scale, max(-scale, (15 - (k * limit * limit).bit_length()) // 2)


def make_operands(torch: Any, device: Any, dtype: str, shape: tuple[int, int, int], span: str, seed: int) -> Operands:
    """Operands for one product of physical ``shape`` (m, n, k), integers spread over ``span``."""
    m, n, k = shape
    generator = torch.Generator(device=device).manual_seed(seed)
    limit = 1 if span == "unit" else operand_limit(dtype, k)
    a, b = (_integers(torch, device, generator, size, limit, span) for size in ((m, k), (k, n)))
    low, high = exponent_limits(dtype, k, limit)
    rows, columns = (
        torch.randint(low, high + 1, (size,), generator=generator, device=device, dtype=torch.int64) for size in (m, n)
    )
    target = getattr(torch, FORMATS[dtype].torch_name)
    if dtype == "int8":
        scaled = (a.to(target), b.to(target))
    else:
        scaled = (
            (a.double() * power_of_two(torch, rows)[:, None]).to(target),
            (b.double() * power_of_two(torch, columns)[None, :]).to(target),
        )
    return Operands(dtype, (a, b), (rows, columns), (scaled[0], right_operand(scaled[1])))


def _integers(torch: Any, device: Any, generator: Any, size: tuple[int, int], limit: int, span: str) -> Any:
    draw = {"generator": generator, "device": device, "dtype": torch.int64}
    values = torch.randint(-limit, limit + 1, size, **draw)
    if span == "high":
        return (limit - values.abs() // 4) * (1 - 2 * torch.randint(0, 2, size, **draw))
    if span == "sparse":
        return values * (torch.randint(0, 10, size, **draw) == 0)
    return values


def power_of_two(torch: Any, exponents: Any) -> Any:
    """2**exponents as float64, put together from bits: a library's pow need not be exact."""
    return ((exponents + 1023) << 52).view(torch.float64)


def exact_product(torch: Any, a: Any, b: Any, dtype: str) -> Any:
    """The product of integer matrices as int64, by another data path than the one under test.

    CPUs multiply integers; GPUs, whose PyTorch has no int64 product, use fp64 units (exact below 2^53), and the integer
    units where fp64 itself is under test.
    """
    if not a.is_cuda:
        return torch.mm(a, b)
    if dtype == "fp64":
        return limb_product(torch, a, b, torch._int_mm)
    return torch.mm(a.double(), b.double()).to(torch.int64)


def limb_product(torch: Any, a: Any, b: Any, int_mm: Callable[[Any, Any], Any]) -> Any:
    """The int64 product of int64 matrices, put together from int8 products with int32 sums."""
    right = [right_operand(limb) for limb in _limbs(torch, b)]
    total = torch.zeros((a.shape[0], b.shape[1]), dtype=torch.int64, device=a.device)
    for i, one in enumerate(_limbs(torch, a)):
        for j, other in enumerate(right):
            total += int_mm(one, other).to(torch.int64) << (_LIMB_BITS * (i + j))
    return total


def _limbs(torch: Any, values: Any) -> list[Any]:
    """Signed digits to the base 2^7, lowest first, as int8."""
    half = 1 << (_LIMB_BITS - 1)
    limbs: list[Any] = []
    while not limbs or bool(values.any()):
        digit = ((values + half) & (2 * half - 1)) - half
        limbs.append(digit.to(torch.int8))
        values = (values - digit) >> _LIMB_BITS
    return limbs


def multiply(torch: Any, compute: Compute, operands: Operands, nominal: tuple[int, int, int]) -> Any:
    """The product under test, in its accumulator's format where the device can give that."""
    return compute.matmul(*operands.scaled, nominal=nominal, out_dtype=accumulator_of(torch, operands.dtype))


def different_bits(torch: Any, product: Any, expected: Any) -> Any:
    """Where the two differ in any bit, as a boolean matrix."""
    view = getattr(torch, _BIT_VIEWS[product.element_size()])
    return product.contiguous().view(view) != expected.view(view)
