"""Memory that does not hold what was written: known patterns over as much free memory as allowed, compared exactly.

Every pattern is a function of the cell's index, computed again for the comparison, and all of the memory is written
before any of it is read, so that caches cannot answer for it. Physical addresses are unknown without root; a mismatch
is reported by its offset in the buffer and the bits that differ.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Iterator, List, Tuple

from muster_node.hardware.cpu_compute import require_torch
from muster_node.hardware.seam import Compute, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.probes._shared import GIB, MIB, best_devices, seed_of

WORD = 8
BLOCK_BYTES = {"cpu": MIB, "gpu": 256 * MIB}  # a core's cache holds what a block is compared with
_EXAMPLES = 4
_MIN_BYTES = 16 * MIB
_FRACTION_MAX = 0.9  # beyond it the kernel starts to reclaim, and kills whoever asks for more

Fill = Callable[[Any], Any]
"""From cell indices (int64) to the words that belong there."""


class MemoryPattern(Probe):
    """Walking bits, own address, moving inversions and random words."""

    name = "memory_pattern"
    stage = "integrity"
    doc = "Patterns written to free memory and compared, on all cores or GPUs at once"
    params = {
        "fraction": Param(0.5, "share of the free memory to test, at most 0.9"),
        "max_gib": Param(None, "cap on the memory tested, in GiB, per machine (CPU) or per GPU; None for no cap"),
        "rounds": Param(1, "how often all patterns are run"),
        "seconds": Param(0.0, "go on for at least so many seconds"),
        "walk": Param(2, "positions that each walking bit takes in each word; 64 is complete and slow"),
        "patterns": Param(
            ["walking_ones", "walking_zeros", "own_address", "moving_inversions", "random"], "patterns to run"
        ),
    }
    metrics = {
        "memory_mismatches": Metric("count", "words that differ, by pattern"),
        "memory_tested": Metric("GiB", "memory that all patterns went over"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Test the memory of the best devices. Raises Skip where too little is free, ValueError on bad parameters."""
        torch = require_torch()
        fraction, known = context.params["fraction"], set(self.params["patterns"].default)
        if not 0 < fraction <= _FRACTION_MAX:
            raise ValueError("fraction must lie above 0 and not above %s, it is %s" % (_FRACTION_MAX, fraction))
        unknown = sorted(set(context.params["patterns"]) - known)
        if unknown:
            raise ValueError("there is no pattern %s (there are %s)" % (unknown[0], ", ".join(sorted(known))))
        devices = best_devices(context.hardware)
        context.progress("memory patterns by %s" % ", ".join(device.id for device in devices))
        with context.hardware.loading(devices):
            found = context.hardware.at_once(devices, _Tester(torch, context))
        if devices[0].kind == "cpu":
            _report(context, "memory", found)
        else:
            for device, one in zip(devices, found):
                _report(context, device.id, [one])


@dataclasses.dataclass
class _Tested:
    """What one worker found."""

    nominal_bytes: int
    rounds: int = 0
    mismatches: Dict[str, int] = dataclasses.field(default_factory=dict)
    examples: Dict[str, List[str]] = dataclasses.field(default_factory=dict)


def _report(context: Context, device: str, found: List[_Tested]) -> None:
    rounds = min(tested.rounds for tested in found)
    for pattern in context.params["patterns"]:
        examples = [example for tested in found for example in tested.examples.get(pattern, [])]
        context.emit(
            "memory_mismatches",
            device,
            value=sum(tested.mismatches.get(pattern, 0) for tested in found),
            labels={"pattern": pattern},
            samples=rounds,
            note="; ".join(examples[:_EXAMPLES]),
        )
    tested_gib = sum(tested.nominal_bytes for tested in found) / GIB
    context.emit("memory_tested", device, value=tested_gib, samples=rounds)


class _Tester:
    """The work of one device: its share of the memory, all patterns, until rounds and seconds are reached."""

    def __init__(self, torch: Any, context: Context) -> None:
        self._torch, self._hardware = torch, context.hardware
        self._params, self._seed = context.params, context.seed

    def __call__(self, worker: Worker) -> _Tested:
        compute = self._hardware.compute(worker.device)
        nominal_bytes = _share(compute.free_memory(), self._params, worker)
        worker.ready()  # everybody has seen how much is free before anybody takes some
        region = Region(self._torch, compute, nominal_bytes, BLOCK_BYTES[worker.device.kind])
        tested, clock = _Tested(region.nominal_bytes), self._hardware.clock
        end = clock.now() + self._params["seconds"]
        while tested.rounds < self._params["rounds"] or clock.now() < end:
            for pattern in self._params["patterns"]:
                key = seed_of(self._seed, worker.device.id, pattern, tested.rounds)
                for fills in sequences(self._torch, pattern, key, self._params["walk"]):
                    wrong, examples = region.test(fills)
                    tested.mismatches[pattern] = tested.mismatches.get(pattern, 0) + wrong
                    tested.examples.setdefault(pattern, []).extend(examples)
            tested.rounds += 1
        return tested


def _share(free: int, params: Any, worker: Worker) -> int:
    workers = worker.count if worker.device.kind == "cpu" else 1
    wanted = free * params["fraction"]
    if params["max_gib"] is not None:
        wanted = min(wanted, params["max_gib"] * GIB)
    if wanted < _MIN_BYTES:
        raise Skip("only %.1f MiB of memory may be tested" % (wanted / MIB))
    return int(wanted / workers)


class Region:
    """A buffer of int64 words on one device, filled and compared block by block."""

    def __init__(self, torch: Any, compute: Compute, nominal_bytes: int, block_bytes: int) -> None:
        self._torch, self._compute = torch, compute
        words = max(1, nominal_bytes // WORD)
        self.nominal_bytes = words * WORD
        (physical,) = compute.physical(words)
        self._buffer = torch.empty(physical, dtype=torch.int64, device=compute.torch_device)
        block = min(physical, block_bytes // WORD)
        self._spans = [(low, min(low + block, physical)) for low in range(0, physical, block)]
        self._indices = torch.arange(block, dtype=torch.int64, device=compute.torch_device)

    @property
    def words(self) -> Any:
        """The buffer itself."""
        return self._buffer

    def test(self, fills: List[Fill]) -> Tuple[int, List[str]]:
        """Write the first fill everywhere; then compare with each and write the next, up and down in turns.

        Returns how many words differed in all comparisons, and a few of them in words.
        """
        for low, high in self._spans:
            self._buffer[low:high] = self._values(fills[0], low, high)
        self._passed(1)
        wrong, examples = 0, []  # type: int, List[str]
        for number, fill in enumerate(fills):
            following = fills[number + 1] if number + 1 < len(fills) else None
            for low, high in self._spans if number % 2 == 0 else reversed(self._spans):
                values, expected = self._buffer[low:high], self._values(fill, low, high)
                different = values != expected
                count = int(different.sum())
                if count:
                    wrong += count
                    examples += [_example(low, at, values, expected) for at in _first(different, len(examples))]
                if following is not None:
                    self._buffer[low:high] = self._values(following, low, high)
            self._passed(1 if following is None else 2)
        return wrong, examples

    def _values(self, fill: Fill, low: int, high: int) -> Any:
        return fill(self._indices[: high - low] + low)

    def _passed(self, times: int) -> None:
        self._buffer = self._compute.touch(self._buffer, nominal_bytes=times * self.nominal_bytes)


def _first(different: Any, have: int) -> List[int]:
    return [int(at) for at in different.nonzero()[: max(0, _EXAMPLES - have)].flatten().tolist()]


def _example(low: int, at: int, values: Any, expected: Any) -> str:
    bits = (int(values[at]) ^ int(expected[at])) & (2**64 - 1)
    return "offset 0x%x differs in bits 0x%016x" % ((low + at) * WORD, bits)


def sequences(torch: Any, pattern: str, key: int, walk: int) -> Iterator[List[Fill]]:
    """The runs that make up a pattern; each run is a list of fills for ``Region.test``."""
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
