"""Collectives with a payload that every rank can check to the last bit, and that names the rank whose part was wrong.

Copied payloads are random words. Summed payloads are integers times a power of two and a sign, drawn from the test's
seed and the same on all ranks at each place, so that sums are exact in any order and every bit of a word changes. Bus
bandwidth is counted as in nccl-tests: S/t × factor, where S is the size of the whole buffer (for all_gather and
reduce_scatter that of all ranks).
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from muster_node.workloads.common import seed_of
from muster_node.workloads.patterns import random_words

ELEMENT_BYTES = 4
ANYBODY = -1
"""The source of a wrong sum: which of its terms was wrong is unknown."""

PERIOD = 4093
"""Number of places after which values repeat: a prime, so that the pieces of a sent buffer, whose sizes are powers of
two, are never a multiple of it apart."""
RANKS_MAX = PERIOD - 1
"""More would repeat each other's values. Sums over so many are below 2^24, which fp32 holds exactly."""
_EXACT = 1 << 24
_EXPONENTS = 64  # powers of two up and down: no sum is near the ends of what fp32 holds
_SUMS = ("all_reduce", "reduce_scatter")

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
Layout = tuple[Callable[[], Any], Callable[[], Any], Any, list[tuple[int, slice]], Callable[[], Any]]
"""(resets the buffers, runs the collective, its result, the rank that each part came from, gives the right answer)."""


def busbw_factor(op: str, ranks: int) -> float:
    """The factor from algorithm bandwidth to bus bandwidth, as nccl-tests' PERFORMANCE.md defines it."""
    return {"all_reduce": 2.0 * (ranks - 1) / ranks, "send_recv": 1.0}.get(op, (ranks - 1) / ranks)


def elements_of(size_bytes: float, ranks: int) -> int:
    """Number of elements of a whole buffer of about ``size_bytes``: equally many for each rank, at least one."""
    return max(1, int(size_bytes) // ELEMENT_BYTES // ranks) * ranks


class Payload:
    """The values that ranks send: each rank's differ from every other's, and from place to place within a period, so
    that swapped and reversed parts are wrong too."""

    def __init__(self, torch: Any, op: str, ranks: int, device: Any, seed: int) -> None:
        self._torch, self._ranks, self._device, self._seed = torch, ranks, device, seed
        self.dtype = torch.float32 if op in _SUMS else torch.int32
        self._factors = self._drawn_factors() if op in _SUMS else None

    def of(self, rank: int, low: int, elements: int) -> Any:
        """A rank's values from place ``low`` on."""
        if self._factors is not None:
            return self._scaled(self._integers(rank, low, elements), low, elements)
        words = random_words(seed_of(self._seed, rank)).words(self._places(low, elements))
        return _repeated((words >> 32).to(self._torch.int32), elements)

    def total(self, low: int, elements: int) -> Any:
        """The sum of all ranks' values from place ``low`` on."""
        sums = self._integers(0, low, elements)
        for rank in range(1, self._ranks):
            sums += self._integers(rank, low, elements)
        return self._scaled(sums, low, elements)

    def _places(self, low: int, elements: int) -> Any:
        """Those of the first period at most."""
        return self._torch.arange(low, low + min(elements, PERIOD), device=self._device) % PERIOD

    def _integers(self, rank: int, low: int, elements: int) -> Any:
        return 1 + (self._places(low, elements) * (rank + 1) + rank) % PERIOD

    def _drawn_factors(self) -> tuple[Any, Any]:
        """By place of a period: an integer that leaves every sum exact, and a signed power of two in fp32."""
        torch, words = self._torch, random_words(seed_of(self._seed)).words(self._places(0, PERIOD))
        integers = 1 + (words >> 32 & 0x7FFFFFFF) % ((_EXACT - 1) // (PERIOD * self._ranks))
        exponents = 127 - _EXPONENTS + (words >> 1 & 2 * _EXPONENTS - 1)
        powers = (exponents << 23).to(torch.int32).view(torch.float32)
        return integers, powers * (1 - 2 * (words & 1))

    def _scaled(self, integers: Any, low: int, elements: int) -> Any:
        assert self._factors is not None
        factors, powers = (each.roll(-(low % PERIOD))[: len(integers)] for each in self._factors)
        return _repeated((integers * factors).to(self._torch.float32) * powers, elements)


def _repeated(once: Any, elements: int) -> Any:
    return once if elements <= PERIOD else once.repeat(-(-elements // PERIOD))[:elements]


class Exchange:
    """One collective over a whole buffer of ``elements`` (a multiple of the number of ranks)."""

    def __init__(
        self, torch: Any, op: str, rank: int, ranks: int, elements: int, device: Any, seed: int, within: Any = None,
        mark: Callable[[str], None] = lambda activity: None,
    ) -> None:  # fmt: skip
        """``seed``: of the payload, one for all ranks. ``within``: for an all_reduce, a group of torch.distributed of
        which ``rank`` is one of ``ranks``; None: all. ``mark`` gets what is computed, before it is: gigabytes take a
        while on a CPU.

        Raises ValueError for an unknown operation, or more than ``RANKS_MAX`` ranks.
        """
        if op not in OPS:
            raise ValueError("there is no collective {} (there are {})".format(op, ", ".join(OPS)))
        if ranks > RANKS_MAX:
            raise ValueError(f"{ranks} ranks are more than a payload tells apart: test {RANKS_MAX} at most")
        self._rank, self._ranks, self._elements = rank, ranks, elements
        self._torch, self._device, self._within = torch, device, within
        mark(f"the payload of {op}")
        self._payload = Payload(torch, op, ranks, device, seed)
        layout: Callable[[], Layout] = getattr(self, op)
        self.reset, self.run, self.result, self._parts, expected = layout()
        mark(f"the right answer of {op}")
        self._expected = expected()

    def wrong(self) -> dict[int, int]:
        """Elements that differ from the exact answer, by the rank they came from; those with none are left out.

        Bits are compared, since a comparison of numbers would not find a zero with a flipped sign.
        """
        bits = self._torch.int32
        differs = self.result.view(bits) != self._expected.view(bits)
        counts = {source: int(differs[part].sum()) for source, part in self._parts}
        return {source: count for source, count in counts.items() if count}

    @property
    def share(self) -> int:
        """Elements of one rank's part of the buffer."""
        return self._elements // self._ranks

    def span(self, rank: int) -> slice:
        """One rank's part of the buffer."""
        return slice(rank * self.share, (rank + 1) * self.share)

    def payload(self, rank: int, part: slice | None = None) -> Any:
        """A rank's whole buffer, or a part of it, on the device."""
        low, end = (part.start, part.stop) if part else (0, self._elements)
        return self._payload.of(rank, low, end - low)

    def mine(self) -> Any:
        """This rank's whole buffer."""
        return self.payload(self._rank)

    def empty(self, elements: int) -> Any:
        """A result buffer, cleared."""
        return self.clear(self._torch.empty(elements, dtype=self._payload.dtype, device=self._device))

    def clear(self, result: Any) -> Any:
        """Fills a buffer with a value that no sum has, and only one random word in 2^32."""
        return result.fill_(float("nan") if result.is_floating_point() else -1)

    def total(self, part: slice | None = None) -> Any:
        """The sum of all ranks' buffers, or of a part of them."""
        low, end = (part.start, part.stop) if part else (0, self._elements)
        return self._payload.total(low, end - low)

    def all_reduce(self) -> Layout:
        """Every rank ends with the sum of all buffers."""
        mine, result = self.mine(), self.empty(self._elements)
        run = functools.partial(self._torch.distributed.all_reduce, result, group=self._within)
        return lambda: result.copy_(mine), run, result, [(ANYBODY, slice(None))], self.total

    def all_gather(self) -> Layout:
        """Every rank ends with the first part of every rank's buffer."""
        dist, result = self._torch.distributed, self.empty(self._elements)
        part = self.payload(self._rank, self.span(0))
        # Every gloo knows lists; whole tensors, which not every gloo takes, spare NCCL a copy.
        run = functools.partial(dist.all_gather, list(result.chunk(self._ranks)), part)
        if self._device.type == "cuda":
            run = functools.partial(dist.all_gather_into_tensor, result, part)
        return lambda: self.clear(result), run, result, self._spans(), lambda: self._parts_of_all(self.span(0))

    def reduce_scatter(self) -> Layout:
        """Each rank ends with its own part of the sum."""
        dist, mine, result = self._torch.distributed, self.mine(), self.empty(self.share)
        run = functools.partial(dist.reduce_scatter, result, list(mine.chunk(self._ranks)))
        if self._device.type == "cuda":
            run = functools.partial(dist.reduce_scatter_tensor, result, mine)
        parts, own = [(ANYBODY, slice(None))], self.span(self._rank)
        return lambda: self.clear(result), run, result, parts, lambda: self.total(own)

    def all_to_all(self) -> Layout:
        """Each rank ends with the part of every rank's buffer that was meant for it."""
        mine, result = self.mine(), self.empty(self._elements)
        run = functools.partial(self._torch.distributed.all_to_all_single, result, mine)
        own = self.span(self._rank)
        return lambda: self.clear(result), run, result, self._spans(), lambda: self._parts_of_all(own)

    def send_recv(self) -> Layout:
        """Each rank ends with its neighbour's buffer: round the ring, all at once."""
        dist, mine, result = self._torch.distributed, self.mine(), self.empty(self._elements)
        ahead, behind = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks

        def run() -> None:
            both = [dist.P2POp(dist.isend, mine, ahead), dist.P2POp(dist.irecv, result, behind)]
            for request in dist.batch_isend_irecv(both):
                request.wait()

        return lambda: self.clear(result), run, result, [(behind, slice(None))], lambda: self.payload(behind)

    def _spans(self) -> list[tuple[int, slice]]:
        return [(rank, self.span(rank)) for rank in range(self._ranks)]

    def _parts_of_all(self, part: slice) -> Any:
        return self._torch.cat([self.payload(rank, part) for rank in range(self._ranks)])
