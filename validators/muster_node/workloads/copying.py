"""Copies between host, GPUs and peers that are repeated, each compared with what was sent."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from muster_node.hardware.seam import Compute, Transfer
from muster_node.probe import Context
from muster_node.workloads.common import reason_of
from muster_node.workloads.digest import digest
from muster_node.workloads.patterns import WORD, random_words
from muster_node.workloads.rerun import Rerun

_WARMUP = 1
_RATED = 3
"""Copies that a rate takes at least. On an H100, one of 256 MiB from the host ran at 45 GB/s and the median of three
at 51 (docs/gpu-day.md): a single one would fail a GPU that is well."""


@dataclasses.dataclass
class Copied:
    """Results of one kind of copy: GB/s of each timed copy, number of copies, and number of wrong copies. ``lost``: why
    the copies broke off, if they did: then they have no figures.
    """

    rates: list[float] = dataclasses.field(default_factory=list)
    copies: int = 0
    wrong: int = 0
    example: str = ""
    lost: str = ""

    @classmethod
    def never(cls, reason: str) -> Copied:
        """Copies that could not begin."""
        return cls(lost=f"no copy could begin: {reason}")

    @property
    def without_rate(self) -> str:
        """Why there is no rate, "" where there is one."""
        return self.lost or (f"a rate takes {_RATED} timed copies" if len(self.rates) < _RATED else "")

    def add(self, other: Copied) -> None:
        """Count another's copies too; the rates are not of one kind and stay apart."""
        self.copies, self.wrong = self.copies + other.copies, self.wrong + other.wrong
        self.example, self.lost = self.example or other.example, self.lost or other.lost


@dataclasses.dataclass
class Sent:
    """The data sent: words and their complement in turns, so that a stuck bit shows with every sender.

    ``digests``: of the words, and of their complement.
    """

    words: Any
    digests: tuple[str, str]

    def turn(self) -> None:
        """Switches between the words and their complement."""
        self.words.bitwise_not_()
        self.digests = self.digests[::-1]


@dataclasses.dataclass(frozen=True)
class Route:
    """A copy that can be repeated, and what it sends."""

    transfer: Transfer
    sent: Sent


def filled(torch: Any, source: Any, key: int) -> Sent:
    """Fills the source with pseudo-random words, since repeating data hides errors."""
    source.copy_(random_words(key).words(torch.arange(source.numel(), dtype=torch.int64, device=source.device)))
    plain = digest(torch, [source])
    sent = Sent(source, (plain, digest(torch, [source.bitwise_not_()])))
    source.bitwise_not_()
    return sent


class Copying:
    """Repeats concurrent copies of ``nominal_bytes``, and compares the received data each time."""

    def __init__(self, torch: Any, context: Context, nominal_bytes: int) -> None:
        self._torch, self._hardware, self._bytes = torch, context.hardware, nominal_bytes
        self._repeats = int(context.params["repeats"])

    def __call__(self, compute: Compute, routes: Sequence[Route]) -> Copied:
        """Copies by all routes at once, as often as the probe's parameter says, and once before to warm up."""
        copied = Copied()
        with self._hardware.loading([compute.device]):
            try:
                for number in range(_WARMUP + self._repeats):
                    self._once(compute, routes, copied, number >= _WARMUP)
            except RuntimeError as error:  # what PyTorch raises when a device has gone
                copied.lost = f"the copies broke off: {reason_of(error)}"
        return copied

    def again(self, compute: Compute, routes: Sequence[Route], times: int) -> Rerun:
        """Repeats copies that were wrong, as far as the devices go on."""
        rerun = Rerun()
        with self._hardware.loading([compute.device]), contextlib.suppress(RuntimeError):
            for _ in range(times):
                copied = Copied()
                self._once(compute, routes, copied, False)
                rerun.add(bool(copied.wrong))
        return rerun

    def _once(self, compute: Compute, routes: Sequence[Route], copied: Copied, counts: bool) -> None:
        for route in routes:
            route.sent.turn()
            route.transfer.target.zero_()
            if route.sent.words.is_cuda:  # a copy waits for its source's GPU, which the timer does not
                self._torch.cuda.synchronize(route.sent.words.device)
        with compute.timer() as timing:
            compute.transfer([route.transfer for route in routes], nominal_bytes=self._bytes)
        if counts:
            copied.rates.append(len(routes) * self._bytes / timing.seconds / 1e9)
        for route in routes:
            self._compare(route, copied)

    def _compare(self, route: Route, copied: Copied) -> None:
        copied.copies += 1
        if digest(self._torch, [route.transfer.target]) != route.sent.digests[0]:
            copied.wrong += 1
            copied.example = copied.example or _difference(route.transfer)


def _difference(transfer: Transfer) -> str:
    """Where the two ends differ, for people."""
    places = (transfer.target.cpu() != transfer.source.cpu()).nonzero().flatten()
    if not places.numel():
        return "the digests differ, and the words are the same on a second look"
    first = int(places[0]) * WORD
    return f"{places.numel()} of {transfer.target.numel()} words differ, the first at 0x{first:x}"
