"""Compress, expand and hash on every core: integer and branch work that floating-point tests do not reach.

What comes back must be what went in, and every core must produce the same bytes from the same data: a core's digest is
compared with that of the majority, so a fault that is consistent on one core shows too.
"""

from __future__ import annotations

import bz2
import hashlib
import lzma
import random
import zlib
from typing import Any, Callable

from muster_node.hardware.seam import Worker
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.common import MIB, seed_of
from muster_node.workloads.vote import dissenters

CODECS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "zlib": (lambda data: zlib.compress(data, 6), zlib.decompress),
    "bz2": (lambda data: bz2.compress(data, 1), bz2.decompress),
    "lzma": (lambda data: lzma.compress(data, preset=0), lzma.decompress),
}
HASH = "sha256"


class RoundTrip(Probe):
    """zlib, bz2, lzma and SHA-256 on all cores at once."""

    name = "round_trip"
    stage = "integrity"
    doc = "Compression round trips and hashes on every core, compared between cores"
    params = {
        "mib": Param(1.0, "data of each round in MiB, half of it random and half compressible"),
        "rounds": Param(2, "rounds, each with fresh data"),
        "seconds": Param(0.0, "go on for at least so many seconds"),
    }
    metrics = {
        "round_trip_mismatches": Metric("count", "rounds in which a core lost data or differed from the other cores")
    }

    def run(self, context: Context) -> None:
        """Test all logical CPUs together, round by round, until rounds and seconds are reached."""
        clock, devices = context.hardware.clock, context.hardware.devices("cpu")
        wrong = {(device.id, codec): 0 for device in devices for codec in (*CODECS, HASH)}
        notes: dict[tuple[str, str], str] = {}
        end, rounds = clock.now() + context.params["seconds"], 0
        while rounds < context.params["rounds"] or clock.now() < end:
            context.progress(f"round trips on all cores, round {rounds + 1}")
            trip = _Trip(seed_of(context.seed, rounds), int(context.params["mib"] * MIB))
            results = context.hardware.at_once(devices, trip)
            for codec in (*CODECS, HASH):
                for index, problem in compare([result[codec] for result in results]).items():
                    wrong[devices[index].id, codec] += 1
                    notes.setdefault((devices[index].id, codec), f"round {rounds + 1}: {problem}")
            rounds += 1
        for (device, codec), count in wrong.items():
            note = notes.get((device, codec), "")
            context.emit(
                "round_trip_mismatches", device, value=count, labels={"codec": codec}, samples=rounds, note=note
            )


def compare(results: list[tuple[bool, str]]) -> dict[int, str]:
    """Which of the cores' (round trip kept the data, digest) are wrong, and how: index → reason."""
    problems = {index: "the data did not come back" for index, (kept, _) in enumerate(results) if not kept}
    for index, reason in dissenters([digest for _, digest in results], "cores").items():
        problems.setdefault(index, reason)
    return problems


class _Trip:
    """One round on one core: codec → (round trip kept the data, digest of what the core produced)."""

    def __init__(self, seed: int, size: int) -> None:
        self._seed, self._size = seed, size

    def __call__(self, worker: Worker) -> dict[str, tuple[bool, str]]:
        data = make_data(self._seed, self._size)
        worker.ready()
        results: dict[str, Any] = {HASH: (True, hashlib.sha256(data).hexdigest())}
        for codec, (compress, expand) in CODECS.items():
            packed = compress(data)
            try:
                kept = expand(packed) == data
            except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError):  # bz2 has no error of its own
                kept = False
            results[codec] = (kept, hashlib.sha256(packed).hexdigest())
        return results


def make_data(seed: int, size: int) -> bytes:
    """Half random bytes, half words from a small vocabulary, which compress well and branch much."""
    generator = random.Random(seed)
    words = [generator.randbytes(generator.randint(2, 9)) for _ in range(256)]
    noise = generator.randbytes(size // 2)
    text = b" ".join(generator.choices(words, k=size // 8))
    return noise + text[: size - len(noise)]
