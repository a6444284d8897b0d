"""A digest of tensors' bits that any difference changes, and that is the same on every machine for the same bits.

Sums modulo 2^64 of every element's bits times a weight for its place, so that order and device do not matter. Real
faults alter a few elements at a regular distance by the same mask. That cancels in an exclusive or, and where the
signs of the changes run + − − + it also cancels in any sum whose weights grow evenly with the place, such as 2i+1; so
the weights here are scrambled. At the top of the sum there is no room for that: to its last bit all odd weights are
alike, and an even number of flips cancels. So the upper halves of 64-bit words are summed once more, 32 bits lower.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

_CHUNK = 1 << 22
_MASK = (1 << 64) - 1
_WORDS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
_MIX_A = 0x9E3779B97F4A7C15 - (1 << 64)  # odd; 2^64 over the golden ratio
_MIX_B = 0xBF58476D1CE4E5B9 - (1 << 64)  # odd; a multiplier of SplitMix64
_SHIFT = 29


def digest(torch: Any, tensors: Iterable[Any]) -> str:
    """Two sums mod 2^64 as 32 hexadecimal digits; places go on between tensors.

    The first is of all words times their weights, the second the same of the upper halves of 64-bit words, and of
    shorter ones the plain sum.
    """
    weighted = second = first = 0
    for tensor in tensors:
        words = tensor.detach().contiguous().view(-1).view(getattr(torch, _WORDS[tensor.element_size()]))
        for start in range(0, words.numel(), _CHUNK):
            bits = words[start : start + _CHUNK].to(torch.int64)
            weights = _weights(torch, first, bits.numel(), bits.device)
            # int64 wraps round, which is arithmetic modulo 2^64.
            weighted += int((bits * weights).sum())
            second += int(((bits >> 32) * weights if words.element_size() == 8 else bits).sum())
            first += bits.numel()
    return f"{weighted & _MASK:016x}{second & _MASK:016x}"


def combined(digests: Iterable[str]) -> str:
    """One digest, as long as each of them, that changes with any of them and with their order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:32]


def _weights(torch: Any, first: int, count: int, device: Any) -> Any:
    """Odd numbers, so that no single change is lost, without any order between neighbours."""
    places = torch.arange(first + 1, first + 1 + count, dtype=torch.int64, device=device) * _MIX_A
    # Shifting right copies the sign, which has to be masked away.
    mixed = places ^ ((places >> _SHIFT) & ((1 << (64 - _SHIFT)) - 1))
    return (mixed * _MIX_B) | 1
