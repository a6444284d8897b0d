"""A digest of tensors' bits that tells any difference, and is the same on every machine that holds the same bits.

Not an exclusive or: that cancels where an even number of elements is altered by the same mask, as real faults do (four
consecutive elements). Two sums modulo 2^64, one of them weighted by an odd number for each place, do not.
"""

from __future__ import annotations

from typing import Any, Iterable

_CHUNK = 1 << 24
_MASK = (1 << 64) - 1
_WORDS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


def digest(torch: Any, tensors: Iterable[Any]) -> str:
    """Σ bits·(2i+1) and Σ bits, both mod 2^64, as 32 hexadecimal digits; i counts on from tensor to tensor."""
    weighted = plain = first = 0
    for tensor in tensors:
        words = tensor.detach().contiguous().view(-1).view(getattr(torch, _WORDS[tensor.element_size()]))
        for start in range(0, words.numel(), _CHUNK):
            bits = words[start : start + _CHUNK].to(torch.int64)
            places = torch.arange(first, first + bits.numel(), dtype=torch.int64, device=bits.device)
            # int64 wraps round, which is arithmetic modulo 2^64.
            weighted += int((bits * (2 * places + 1)).sum())
            plain += int(bits.sum())
            first += bits.numel()
    return "%016x%016x" % (weighted & _MASK, plain & _MASK)
