"""Corrupts device buffers in flight, at the hardware seam, without the detector's knowledge.

A probe is given ``OneDevice`` in place of the machine and runs unchanged: what a kernel has written, or what lies
in memory, is altered before the probe sees it again. Only the test knows whether bits really changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from muster_node.cluster.collectives.exchange import Exchange
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Device, Fact, Hardware, Late, Sample, Timing, Transfer, Usage, Worker
from muster_node.probes import collectives

Damage = Callable[[Any, int, random.Random], None]
"""Alters a flat buffer of integer words, given the length of its rows and the dice."""

_ROW_WORDS = 512  # what counts as a row of a buffer without rows
_STRIDES = (1, 2, 4, 8, 16, 32, 64, 128)


def _mask(words: Any, dice: random.Random) -> int:
    """The mask of one bit of a word; negative for the topmost."""
    bits = 8 * int(words.element_size())
    bit = dice.randrange(bits)
    return -(1 << bit) if bit == bits - 1 else 1 << bit


def _one_bit(words: Any, row: int, dice: random.Random) -> None:
    words[dice.randrange(words.numel())] ^= _mask(words, dice)


def _four_strided(words: Any, row: int, dice: random.Random) -> None:
    stride = dice.choice(_STRIDES)
    first = dice.randrange(words.numel() - 3 * stride)
    words[first : first + 3 * stride + 1 : stride] ^= _mask(words, dice)


def _a_row(words: Any, row: int, dice: random.Random) -> None:
    first = row * dice.randrange(words.numel() // row)
    words[first : first + row] ^= _mask(words, dice)


def _offset(words: Any, row: int, dice: random.Random) -> None:
    words += dice.randint(1, 100)


def _shifted(words: Any, row: int, dice: random.Random) -> None:
    words.copy_(words.roll(dice.choice(_STRIDES)))


def _zero_fill(words: Any, row: int, dice: random.Random) -> None:
    length = words.numel() // 4
    first = dice.randrange(words.numel() - length + 1)
    words[first : first + length] = 0


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of corruption; a ``steady`` one is the same, at the same place, in every buffer."""

    damage: Damage
    steady: bool = False


KINDS = {
    "one_bit": Kind(_one_bit),
    "four_strided": Kind(_four_strided),
    "row": Kind(_a_row),
    "offset": Kind(_offset),
    "shifted": Kind(_shifted),
    "repeatable": Kind(_four_strided, steady=True),
    "zero_fill": Kind(_zero_fill),
}


class Injector:
    """Damages one of the first ``among`` results of ``operation``, or every one if steady.

    Operations: "matmul", "copy", "touch", "transfer" (what has arrived from the host, or there), "peer" (what has
    arrived from a peer), "collective" (what a rank was brought).
    """

    def __init__(self, kind: str, operation: str, among: int, seed: int) -> None:
        self._kind, self._operation, self._seed = KINDS[kind], operation, seed
        self._hit, self._calls = random.Random(seed).randrange(among), 0
        # Workers on CPUs are forked processes: they report what they did through shared memory.
        self._changed = multiprocessing.RawValue("i", 0)

    @property
    def changed(self) -> bool:
        """Whether any bit of any buffer has been changed."""
        return bool(self._changed.value)

    def pass_through(self, operation: str, buffer: Any) -> Any:
        """The buffer, damaged in place if this is the moment."""
        if operation != self._operation:
            return buffer
        number, self._calls = self._calls, self._calls + 1
        if self._kind.steady or number == self._hit:
            torch = require_torch()
            integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[buffer.element_size()]
            words = buffer.view(-1).view(integer)
            before = words.clone()
            row = buffer.shape[-1] if buffer.dim() > 1 else min(_ROW_WORDS, words.numel())
            self._kind.damage(words, row, random.Random(self._seed))
            self._changed.value |= int(not torch.equal(words, before))
        return buffer

    @contextlib.contextmanager
    def exchanges(self) -> Iterator[None]:
        """Until the block ends, what collectives of the probe bring to their last rank passes through here."""
        injector = self

        class Tampered(Exchange):
            def __init__(self, torch: Any, op: str, rank: int, ranks: int, *rest: Any) -> None:
                super().__init__(torch, op, rank, ranks, *rest)
                self._honest = self.run
                if rank == ranks - 1:
                    self.run = self._tampered

            def _tampered(self) -> None:
                self._honest()
                injector.pass_through("collective", self.result)

        with mock.patch.object(collectives, "Exchange", Tampered):
            yield


class FaultyCompute(Compute):
    """A device whose results pass through an injector."""

    def __init__(self, inner: Compute, injector: Injector) -> None:
        self._inner, self._injector = inner, injector
        self.device, self.torch_device = inner.device, inner.torch_device

    def physical(self, *shape: int) -> tuple[int, ...]:
        """As the device has it."""
        return self._inner.physical(*shape)

    def matmul(self, a: Any, b: Any, *, nominal: tuple[int, int, int], out_dtype: Any = None) -> Any:
        """The device's product, perhaps damaged."""
        product = self._inner.matmul(a, b, nominal=nominal, out_dtype=out_dtype)
        return self._injector.pass_through("matmul", product)

    def copy(self, target: Any, source: Any, *, nominal_bytes: int) -> None:
        """The device's copy, perhaps damaged."""
        self._inner.copy(target, source, nominal_bytes=nominal_bytes)
        self._injector.pass_through("copy", target)

    def touch(self, tensor: Any, *, nominal_bytes: int) -> Any:
        """The tensor, perhaps damaged where it lies."""
        return self._injector.pass_through("touch", self._inner.touch(tensor, nominal_bytes=nominal_bytes))

    def host_buffer(self, elements: int) -> Any:
        """The device's own."""
        return self._inner.host_buffer(elements)

    def transfer(self, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        """The device's copies, each perhaps damaged on its way."""
        self._inner.transfer(transfers, nominal_bytes=nominal_bytes)
        for one in transfers:
            self._injector.pass_through("transfer" if one.peer is None else "peer", one.target)

    def timer(self) -> AbstractContextManager[Timing]:
        """The device's own."""
        return self._inner.timer()

    def free_memory(self) -> int:
        """As the device has it."""
        return self._inner.free_memory()

    def supports(self, dtype: str) -> bool:
        """As the device has it."""
        return self._inner.supports(dtype)


class OneDevice(Hardware):
    """A machine of which only the first of the best devices is seen; its results pass through an injector, if any."""

    def __init__(self, inner: Hardware, injector: Injector | None = None) -> None:
        self._inner, self._injector = inner, injector
        self.simulated, self.clock = inner.simulated, inner.clock

    def devices(self, kind: str) -> list[Device]:
        """The first of its kind."""
        return self._inner.devices(kind)[:1]

    def compute(self, device: Device) -> Compute:
        """The device's compute, through the injector."""
        inner = self._inner.compute(device)
        return inner if self._injector is None else FaultyCompute(inner, self._injector)

    def at_once(
        self,
        devices: list[Device],
        work: Callable[[Worker], Any],
        tick: Callable[[], None] | None = None,
        tick_s: float = 1.0,
        late: Late | None = None,
        takes_s: float | None = None,
    ) -> list[Any]:
        """As the machine does it."""
        return self._inner.at_once(devices, work, tick, tick_s, late, takes_s)

    def states(self) -> Iterable[Fact]:
        """The machine's."""
        return self._inner.states()

    def boot_id(self) -> str:
        """The machine's."""
        return self._inner.boot_id()

    def inventory(self) -> Iterable[Fact]:
        """The machine's."""
        return self._inner.inventory()

    def counters(self) -> Iterable[Fact]:
        """The machine's."""
        return self._inner.counters()

    def telemetry(self) -> Iterable[Sample]:
        """The machine's."""
        return self._inner.telemetry()

    def usage(self) -> Usage:
        """The machine's."""
        return self._inner.usage()

    def kernel_log(self) -> list[str] | None:
        """The machine's."""
        return self._inner.kernel_log()


class WithPeers(OneDevice):
    """The same with two peers seen beside the first device, which are sound."""

    def devices(self, kind: str) -> list[Device]:
        """The first of its kind, and two more where there are any."""
        return self._inner.devices(kind)[:3]

    def compute(self, device: Device) -> Compute:
        """The first device's through the injector, its peers' as they are."""
        first = self._inner.devices(device.kind)[0]
        return super().compute(device) if device == first else self._inner.compute(device)
