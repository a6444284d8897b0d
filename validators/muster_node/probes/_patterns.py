"""Patterns for memory, each a function of the cell's index, and the buffer that is filled with and compared to them.

All of the buffer is written before any of it is read, so that caches cannot answer for it.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Tuple

from muster_node.hardware.seam import Compute
from muster_node.probes._shared import MIB

WORD = 8
# A core's cache holds what a block is compared with. Several blocks' worth of temporary results must fit beside the
# region into what a GPU has left.
BLOCK_BYTES = {"cpu": MIB, "gpu": 64 * MIB}
PATTERNS = ("walking_ones", "walking_zeros", "own_address", "moving_inversions", "random", "block_move")
EXAMPLES = 4
_ALL = 2**64 - 1

Fill = Callable[[Any], Any]
"""From cell indices (int64) to the words that belong there."""


class Region:
    """A buffer of int64 words on one device, filled and compared block by block.

    ``moved_bytes`` counts what has been written and read so far, in bytes of the nominal buffer.
    """

    def __init__(self, torch: Any, compute: Compute, nominal_bytes: int, block_bytes: int) -> None:
        self._torch, self._compute = torch, compute
        words = max(1, nominal_bytes // WORD)
        self.nominal_bytes, self.moved_bytes = words * WORD, 0
        (physical,) = compute.physical(words)
        self._buffer = torch.empty(physical, dtype=torch.int64, device=compute.torch_device)
        block = min(physical, block_bytes // WORD)
        self._spans = _spans(physical, block)
        self._indices = torch.arange(block, dtype=torch.int64, device=compute.torch_device)

    @property
    def words(self) -> Any:
        """The buffer itself."""
        return self._buffer

    def run(self, pattern: str, fills: List[Fill]) -> Tuple[int, List[str]]:
        """One run of a pattern, as ``sequences`` gives it: how many words differed, and a few of them in words."""
        return self.test_moved(fills[0]) if pattern == "block_move" else self.test(fills)

    def test(self, fills: List[Fill]) -> Tuple[int, List[str]]:
        """Write the first fill everywhere; then compare with each and write the next, up and down in turns.

        Returns how many words differed in all comparisons, and a few of them in words.
        """
        self._write(fills[0])
        wrong, examples = 0, []  # type: int, List[str]
        for number, fill in enumerate(fills):
            following = fills[number + 1] if number + 1 < len(fills) else None
            for low, high in self._spans if number % 2 == 0 else reversed(self._spans):
                wrong += self._compare(fill, low, high, examples)
                if following is not None:
                    self._buffer[low:high] = self._values(following, low, high)
            self._passed(1 if following is None else 2)
        return wrong, examples

    def test_moved(self, fill: Fill) -> Tuple[int, List[str]]:
        """Write a fill everywhere, let the device move every block to its neighbour's place, and compare there."""
        self._write(fill)
        count = self._buffer.numel()
        step = min(self._spans[0][1], max(1, count // 4))  # a buffer of one block is moved in quarters
        kept = self._buffer[:step].clone()
        for low, high in _spans(count - step, step):
            self._copy(self._buffer[low:high], self._buffer[low + step : high + step])
        self._copy(self._buffer[count - step :], kept)
        self.moved_bytes += 2 * self.nominal_bytes
        wrong, examples = 0, []  # type: int, List[str]
        for low, high in self._spans:
            wrong += self._compare(fill, low, high, examples, step)
        self._passed(1)
        return wrong, examples

    def copy_rate(self, repeats: int) -> float:
        """Bytes per second, read and written, at which the device copies one half of the buffer to the other."""
        half = self._buffer.numel() // 2
        if not half:
            return 0.0
        self._copy(self._buffer[:half], self._buffer[half : 2 * half])
        with self._compute.timer() as timing:
            for _ in range(repeats):
                self._copy(self._buffer[:half], self._buffer[half : 2 * half])
        return repeats * self.nominal_bytes / timing.seconds if timing.seconds > 0 else 0.0

    def _write(self, fill: Fill) -> None:
        for low, high in self._spans:
            self._buffer[low:high] = self._values(fill, low, high)
        self._passed(1)

    def _compare(self, fill: Fill, low: int, high: int, examples: List[str], moved: int = 0) -> int:
        """``moved``: by how many words, down and around, everything was moved since it was written."""
        values, expected = self._buffer[low:high], self._values(fill, low, high, moved)
        different = values != expected
        count = int(different.sum())
        if count:
            places = different.nonzero()[: max(0, EXAMPLES - len(examples))].flatten().tolist()
            for at in places:
                origin = ", moved there from word %d" % ((low + at + moved) % self._buffer.numel()) if moved else ""
                examples.append(described(low + at, int(expected[at]), int(values[at])) + origin)
        return count

    def _values(self, fill: Fill, low: int, high: int, moved: int = 0) -> Any:
        indices = self._indices[: high - low] + low
        return fill((indices + moved) % self._buffer.numel() if moved else indices)

    def _copy(self, target: Any, source: Any) -> None:
        nominal = self.nominal_bytes * target.numel() // self._buffer.numel()
        self._compute.copy(target, source, nominal_bytes=nominal)

    def _passed(self, times: int) -> None:
        self.moved_bytes += times * self.nominal_bytes
        self._buffer = self._compute.touch(self._buffer, nominal_bytes=times * self.nominal_bytes)


def _spans(count: int, block: int) -> List[Tuple[int, int]]:
    return [(low, min(low + block, count)) for low in range(0, count, block)]


def described(index: int, wrote: int, read: int) -> str:
    """A wrong word: where, what was written and read, and which way its bits went."""
    wrote, read = wrote & _ALL, read & _ALL
    fallen, risen = bin(wrote & ~read).count("1"), bin(read & ~wrote).count("1")
    ways = ((fallen, "1→0"), (risen, "0→1"))
    told = " and ".join("%d bit%s %s" % (count, "" if count == 1 else "s", way) for count, way in ways if count)
    return "word %d (offset 0x%x): wrote 0x%016x, read 0x%016x, %s" % (index, index * WORD, wrote, read, told)


def sequences(torch: Any, pattern: str, key: int, walk: int) -> Iterator[List[Fill]]:
    """The runs that make up a pattern; each run is a list of fills for ``Region.run``."""
    if pattern in ("walking_ones", "walking_zeros"):
        for step in range(walk):
            shift = (key + step * 64 // walk) % 64
            yield [_walking(torch, shift, pattern == "walking_zeros")]
    elif pattern == "own_address":
        yield [lambda index: index * WORD, lambda index: ~(index * WORD)]
    elif pattern == "moving_inversions":
        word = key - 2**61
        yield [_constant(word), _constant(~word), _constant(word)]
    else:
        yield [random_words(key)]


def _walking(torch: Any, shift: int, inverted: bool) -> Fill:
    def fill(index: Any) -> Any:
        bits = torch.ones_like(index) << ((index + shift) % 64)
        return ~bits if inverted else bits

    return fill


def _constant(word: int) -> Fill:
    return lambda index: index * 0 + word


def random_words(key: int) -> Fill:
    """Words that look random and are a function of index and key: two rounds of multiply and shift, modulo 2^64."""

    def fill(index: Any) -> Any:
        mixed = (index + key) * -7046029254386353131
        mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
        return mixed ^ (mixed >> 32)

    return fill
