"""Collectives as rings of copies between simulated GPUs, since NCCL runs on real ones only.

Every GPU sends a part of the buffer to the next, all at once, as in NCCL's ring algorithm: parts really move and are
really added, in buffers that a fault can change; the devices account for the time that the copies take.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Callable

from muster_node.cluster.collectives.exchange import ELEMENT_BYTES, Exchange
from muster_node.hardware.seam import Collective, Compute, Transfer


class Ring(Collective):
    """One collective of ``elements`` (a multiple of the number of GPUs)."""

    carried = "a ring of copies between the modelled GPUs; NCCL did not run"

    def __init__(self, torch: Any, computes: Sequence[Compute], op: str, elements: int, seed: int) -> None:
        self._computes, self._op, self._count = computes, op, len(computes)
        self._nominal_bytes = elements // self._count * ELEMENT_BYTES
        (self._share,) = computes[0].physical(elements // self._count)
        self._members = [
            Exchange(torch, op, rank, self._count, self._share * self._count, compute.torch_device, seed)
            for rank, compute in enumerate(computes)
        ]
        self._filled = [member.mine() for member in self._members]
        self._incoming = [member.empty(self._share) for member in self._members]

    def run(self) -> list[float]:
        """Run it once; device seconds by GPU, each until it has all of its part."""
        for member in self._members:
            member.reset()
        with contextlib.ExitStack() as timed:
            timings = [timed.enter_context(compute.timer()) for compute in self._computes]
            _STEPS[self._op](self)
        return [timing.seconds for timing in timings]

    def wrong(self) -> list[int]:
        """Elements that differ from the exact result, by GPU."""
        return [sum(member.wrong().values()) for member in self._members]

    def all_reduce(self) -> None:
        """The parts of all GPUs are summed around the ring, then the sums go around it."""
        results = [member.result for member in self._members]
        self._reduce(results)
        self._gather(results)

    def all_gather(self) -> None:
        """The first part of every GPU's buffer goes around the ring."""
        for rank, member in enumerate(self._members):
            member.result[member.span(rank)] = self._filled[rank][: self._share]
        self._gather([member.result for member in self._members])

    def reduce_scatter(self) -> None:
        """The parts of all GPUs are summed around the ring; each sum stays where it is complete."""
        sums = [filled.clone() for filled in self._filled]
        self._reduce(sums)
        for rank, member in enumerate(self._members):
            member.result.copy_(sums[rank][member.span(rank)])

    def all_to_all(self) -> None:
        """In step N every GPU gets its part from the GPU that is N places behind."""
        for rank, member in enumerate(self._members):
            member.result[member.span(rank)] = self._filled[rank][member.span(rank)]
        for step in range(1, self._count):
            for rank, member in enumerate(self._members):
                giver = (rank - step) % self._count
                self._copy(rank, giver, member.result[member.span(giver)], self._filled[giver][member.span(rank)])

    def send_recv(self) -> None:
        """Every GPU gets the whole buffer of the GPU behind it."""
        for rank, member in enumerate(self._members):
            behind = (rank - 1) % self._count
            for part in range(self._count):
                self._copy(rank, behind, member.result[member.span(part)], self._filled[behind][member.span(part)])

    def _reduce(self, buffers: list[Any]) -> None:
        """Afterwards part ``rank`` of buffer ``rank`` is the sum of that part of all buffers."""
        for step in range(self._count - 1):
            for rank, member in enumerate(self._members):
                behind, part = (rank - 1) % self._count, member.span((rank - 2 - step) % self._count)
                self._copy(rank, behind, self._incoming[rank], buffers[behind][part])
            for rank, member in enumerate(self._members):
                part = member.span((rank - 2 - step) % self._count)
                buffers[rank][part] += self._incoming[rank]
                self._computes[rank].touch(buffers[rank][part], nominal_bytes=0)  # added as it arrives

    def _gather(self, buffers: list[Any]) -> None:
        """Afterwards every buffer has part ``rank`` of buffer ``rank``, for all of them."""
        for step in range(self._count - 1):
            for rank, member in enumerate(self._members):
                behind, part = (rank - 1) % self._count, member.span((rank - 1 - step) % self._count)
                self._copy(rank, behind, buffers[rank][part], buffers[behind][part])

    def _copy(self, rank: int, giver: int, target: Any, source: Any) -> None:
        one = Transfer("peer", target, source, self._computes[giver].device)
        self._computes[rank].transfer([one], nominal_bytes=self._nominal_bytes)


_STEPS: dict[str, Callable[[Ring], None]] = {
    "all_reduce": Ring.all_reduce,
    "all_gather": Ring.all_gather,
    "reduce_scatter": Ring.reduce_scatter,
    "all_to_all": Ring.all_to_all,
    "send_recv": Ring.send_recv,
}
