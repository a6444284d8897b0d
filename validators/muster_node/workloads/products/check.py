"""Checks whether every bit of a product is as expected, at little cost compared with the product itself.

On GPUs one pass over the product's bytes: rows of them times random odd int8 weights on the integer units, sums exact
in int32. The same sums of the expected product are worked out once and serve every product of the same operands. A
change of one byte always shows, since no weight is zero; changes that meet in one row would have to cancel under eight
independent sets of weights. The sums are of bits and not of values, so that formats which round are covered too.

Elsewhere, and for products of odd sizes, the bits are compared directly.
"""

from __future__ import annotations

from typing import Any, Callable

from muster_node.workloads.products.exact import different_bits

_ROW_BYTES = 4096  # enough rows to keep all of a GPU's multiprocessors busy
_SETS = 8  # sets of weights; cuBLAS multiplies int8 in multiples of eight columns
_MIN_ROWS = 17  # the fewest that PyTorch multiplies as int8 on CUDA


class ProductCheck:
    """Compares products of the same operands with the expected one, without waiting for the device."""

    def __init__(self, torch: Any, expected: Any, seed: int) -> None:
        self._torch, self._expected = torch, expected
        self._sums = ByteSums(torch, expected.device, seed, torch._int_mm) if _summable(expected) else None
        self._wanted = self._sums(expected) if self._sums is not None else None

    def differs(self, product: Any) -> Any:
        """A boolean on the device: whether any bit of any element is wrong."""
        if self._sums is None:
            return different_bits(self._torch, product, self._expected).any()
        return (self._sums(product) != self._wanted).any()


class ByteSums:
    """Weighted sums of a tensor's bytes: eight int32 numbers for each row of 4096 bytes."""

    def __init__(self, torch: Any, device: Any, seed: int, int_mm: Callable[[Any, Any], Any]) -> None:
        generator = torch.Generator(device=device).manual_seed(seed)
        odd = 2 * torch.randint(-64, 64, (_SETS, _ROW_BYTES), generator=generator, device=device) + 1
        # int8 kernels want the right operand column by column.
        self._weights = odd.to(torch.int8).t()
        self._torch, self._int_mm = torch, int_mm

    def __call__(self, tensor: Any) -> Any:
        """The sums of a tensor whose size is a multiple of 4096 bytes."""
        rows = tensor.contiguous().view(-1).view(self._torch.int8).view(-1, _ROW_BYTES)
        return self._int_mm(rows, self._weights)


def _summable(product: Any) -> bool:
    size = product.numel() * product.element_size()
    return bool(product.is_cuda) and size % _ROW_BYTES == 0 and size >= _MIN_ROWS * _ROW_BYTES
