"""Patterns for memory, and the buffer that is filled with and compared to them.

All of the buffer is written before any of it is read, so that caches cannot answer for it. The buffer is laid out in
rows of one period. A pattern is a short template that every row repeats, shifted by a stride or raised by a slope from
row to row: the template stays in the cache, so that writing moves each byte once, and comparing hardly more than once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Callable

from muster_node.hardware.seam import Compute
from muster_node.workloads.common import MIB

WORD = 8
BLOCK_BYTES = {"cpu": MIB, "gpu": 4096 * MIB}  # compared before anything waits for the answer
_COMPARED_BYTES = {"cpu": MIB, "gpu": 128 * MIB}  # compared by one operation: its answer stays in the cache
# Half a core's second-level cache. An H100 writes rows of 4 MiB at 2.9 TB/s, of 16 MiB at 1.8 (docs/gpu-day.md).
PERIOD_BYTES = {"cpu": MIB // 8, "gpu": 4 * MIB}
PATTERNS = ("walking_ones", "walking_zeros", "own_address", "moving_inversions", "random", "block_move")
EXAMPLES = 4
_ALL = 2**64 - 1
_WALK = 64  # words, the period of a walking bit
_ROWS_MIN = 4  # rows of a buffer smaller than a period, so that blocks can be moved
_MOVES = 128  # fewest blocks that are moved, if there are as many rows: one of them is buffered meanwhile
_SHIFT = 2  # words by which rows of random words differ: no power of two times a period, which address lines select

Words = Callable[[Any], Any]
"""From numbers (int64) to words."""


@dataclasses.dataclass(frozen=True)
class Fill:
    """The content of each cell: ``words(row × stride + column) + row × slope``, where a row is one ``period`` long.

    ``stride`` and ``slope`` are worked out from the period.
    """

    words: Words
    stride: Callable[[int], int] = lambda period: 0
    slope: Callable[[int], int] = lambda period: 0

    def at(self, index: Any, period: int) -> Any:
        """The words of some cells, by their indices."""
        row = index // period
        return self.words(row * self.stride(period) + index % period) + row * self.slope(period)


class Region:
    """A buffer of int64 words on one device, filled and compared block by block."""

    def __init__(self, torch: Any, compute: Compute, nominal_bytes: int, block_bytes: int) -> None:
        self._torch, self._compute = torch, compute
        words = max(_ROWS_MIN, nominal_bytes // WORD)
        (physical,) = compute.physical(words)
        self.period = max(1, min(PERIOD_BYTES[compute.device.kind] // WORD, physical // _ROWS_MIN))
        rows = physical // self.period
        # What does not fill a row is left out: on real hardware, where both sizes are one, it is not counted either.
        self.nominal_bytes = (rows * self.period if physical == words else words) * WORD
        self._buffer = torch.empty(rows * self.period, dtype=torch.int64, device=compute.torch_device)
        self._rows = torch.arange(rows, dtype=torch.int64, device=compute.torch_device)
        self._block = max(1, min(block_bytes // WORD // self.period, rows // _ROWS_MIN))
        self._compared = max(1, _COMPARED_BYTES[compute.device.kind] // WORD // self.period)
        self._spans = [(low, min(low + self._block, rows)) for low in range(0, rows, self._block)]

    @property
    def words(self) -> Any:
        """The buffer itself."""
        return self._buffer

    def run(self, pattern: str, fills: list[Fill]) -> tuple[int, list[str]]:
        """One run of a pattern, as ``sequences`` gives it: how many words differed, and descriptions of a few."""
        return self.test_moved(fills[0]) if pattern == "block_move" else self.test(fills)

    def test(self, fills: list[Fill]) -> tuple[int, list[str]]:
        """Write the first fill everywhere; then compare with each and write the next, up and down in turns.

        Returns how many words differed in all comparisons, and a few of them in words.
        """
        laid = [_Laid(self._torch, fill, self.period, self._rows) for fill in fills]
        self._write(laid[0])
        wrong, examples = 0, []  # type: int, list[str]
        for number, fill in enumerate(laid):
            following = laid[number + 1] if number + 1 < len(laid) else None
            for low, high in self._spans if number % 2 == 0 else reversed(self._spans):
                wrong += self._compare(fill, low, high, examples)
                if following is not None:
                    following.write(self._lines(low, high), low)
            self._passed(1 if following is None else 2)
        return wrong, examples

    def test_moved(self, fill: Fill) -> tuple[int, list[str]]:
        """Write a fill everywhere, let the device move every block to its neighbour's place, and compare there."""
        laid = _Laid(self._torch, fill, self.period, self._rows)
        self._write(laid)
        rows = len(self._rows)
        step = min(self._block, max(1, rows // _MOVES))
        kept = self._lines(0, step).clone()
        for low in range(0, rows - step, step):
            high = min(low + step, rows - step)
            self._copy(self._lines(low, high), self._lines(low + step, high + step))
        self._copy(self._lines(rows - step, rows), kept)
        wrong, examples = 0, []  # type: int, list[str]
        for low in range(0, rows - step, step):
            wrong += self._compare(laid, low, min(low + step, rows - step), examples, step)
        wrong += self._compare(laid, rows - step, rows, examples, step - rows)
        self._passed(1)
        return wrong, examples

    def _write(self, laid: _Laid) -> None:
        for low, high in self._spans:
            laid.write(self._lines(low, high), low)
        self._passed(1)

    def _compare(self, laid: _Laid, low: int, high: int, examples: list[str], moved: int = 0) -> int:
        """``moved``: the expected data was written that many rows further on."""
        spans = [(at, min(at + self._compared, high)) for at in range(low, high, self._compared)]
        wrong = self._torch.zeros((), dtype=self._torch.bool, device=self._buffer.device)
        for first, last in spans:
            wrong |= _any(self._torch, laid.differs(self._lines(first, last), first + moved))
        if not bool(wrong):
            return 0
        found = sum(self._described(laid, span, examples, moved) for span in spans)
        if not found:  # an error on the way is an error, too
            examples.append(f"rows {low} to {high - 1} differed when they were read, and not when read again")
        return max(1, found)

    def _described(self, laid: _Laid, span: tuple[int, int], examples: list[str], moved: int) -> int:
        """How many words of some rows differ; the first few are added to ``examples``."""
        low, lines = span[0], self._lines(*span)
        different = laid.differs(lines, low + moved)
        for row, column in _first(different, EXAMPLES - len(examples)):
            index = (low + row) * self.period + column
            wrote, read = laid.written_and_read(lines, low + moved, row, column)
            origin = f", moved there from word {index + moved * self.period}" if moved else ""
            examples.append(described(index, wrote, read) + origin)
        return int(different.sum())

    def _lines(self, low: int, high: int) -> Any:
        return self._buffer[low * self.period : high * self.period].view(high - low, self.period)

    def _copy(self, target: Any, source: Any) -> None:
        nominal = self.nominal_bytes * target.numel() // self._buffer.numel()
        self._compute.copy(target, source, nominal_bytes=nominal)

    def _passed(self, times: int) -> None:
        self._buffer = self._compute.touch(self._buffer, nominal_bytes=times * self.nominal_bytes)


class _Laid:
    """A fill laid out over rows: the template that all of them share, and by how much each is raised."""

    def __init__(self, torch: Any, fill: Fill, period: int, rows: Any) -> None:
        self._torch, self._period, self._stride = torch, period, fill.stride(period)
        length = period + (len(rows) - 1) * self._stride
        self._template = fill.words(torch.arange(length, dtype=torch.int64, device=rows.device))
        self._raised = (rows * fill.slope(period))[:, None] if fill.slope(period) else None

    def write(self, lines: Any, low: int) -> None:
        """Fill rows, the first of which is row ``low``."""
        if self._raised is None:
            lines.copy_(self._shared(lines, low))
        else:
            self._torch.add(self._shared(lines, low), self._raised[low : low + len(lines)], out=lines)

    def differs(self, lines: Any, low: int) -> Any:
        """Where rows are not what row ``low`` and those after it were filled with."""
        if self._raised is not None:
            lines = lines - self._raised[low : low + len(lines)]
        return lines != self._shared(lines, low)

    def written_and_read(self, lines: Any, low: int, row: int, column: int) -> tuple[int, int]:
        """The words that were written into a cell and read from it."""
        raised = 0 if self._raised is None else int(self._raised[low + row])
        return int(self._shared(lines, low)[row, column]) + raised, int(lines[row, column])

    def _shared(self, lines: Any, low: int) -> Any:
        return self._template.as_strided((len(lines), self._period), (self._stride, 1), low * self._stride)


def _any(torch: Any, different: Any) -> Any:
    """Whether any is true, as a tensor, so that nothing waits for it. Eight at a time, where there are so many."""
    return (different.view(torch.int64) if different.shape[1] % WORD == 0 else different).any()


def _first(different: Any, most: int) -> list[tuple[int, int]]:
    """Row and column of the first few that are true, row by row: a list of all could need more memory than is left."""
    found: list[tuple[int, int]] = []
    for row in different.any(1).nonzero().flatten().tolist():
        if len(found) >= most:
            break
        found += [(row, column) for column in different[row].nonzero().flatten()[: most - len(found)].tolist()]
    return found


def described(index: int, wrote: int, read: int) -> str:
    """A wrong word: where, what was written and read, and which way its bits went."""
    wrote, read = wrote & _ALL, read & _ALL
    fallen, risen = bin(wrote & ~read).count("1"), bin(read & ~wrote).count("1")
    ways = ((fallen, "1→0"), (risen, "0→1"))
    flips = " and ".join(f"{count} bit{'' if count == 1 else 's'} {way}" for count, way in ways if count)
    return f"word {index} (offset 0x{index * WORD:x}): wrote 0x{wrote:016x}, read 0x{read:016x}, {flips}"


def sequences(torch: Any, pattern: str, key: int, walk: int) -> Iterator[list[Fill]]:
    """The runs that make up a pattern; each run is a list of fills for ``Region.run``."""
    if pattern in ("walking_ones", "walking_zeros"):
        for step in range(walk):
            yield [_walking(torch, (key + step * _WALK // walk) % _WALK, pattern == "walking_zeros")]
    elif pattern == "own_address":
        upward = Fill(lambda index: index * WORD, slope=lambda period: period * WORD)
        yield [upward, Fill(lambda index: ~(index * WORD), slope=lambda period: -period * WORD)]
    elif pattern == "moving_inversions":
        word = key - 2**61
        yield [_constant(word), _constant(~word), _constant(word)]
    else:
        yield [random_words(key)]


def _walking(torch: Any, shift: int, inverted: bool) -> Fill:
    def words(index: Any) -> Any:
        bits = torch.ones_like(index) << ((index + shift) % _WALK)
        return ~bits if inverted else bits

    return Fill(words, stride=lambda period: period % _WALK)


def _constant(word: int) -> Fill:
    return Fill(lambda index: index * 0 + word)


def random_words(key: int) -> Fill:
    """Words that look random, a function of place and key: two rounds of multiply and shift, modulo 2^64.

    Rows are shifted against each other, so that data in the wrong row shows.
    """

    def words(index: Any) -> Any:
        mixed = (index + key) * -7046029254386353131
        # Shifting right copies the sign, which would leave the topmost bit the same in all words.
        mixed = (mixed ^ (mixed >> 29 & (1 << 35) - 1)) * -4658895280553007687
        return mixed ^ (mixed >> 32 & (1 << 32) - 1)

    return Fill(words, stride=lambda period: _SHIFT)
