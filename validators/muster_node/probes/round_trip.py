"""Compress, expand and hash on every core: integer and branch work that floating-point tests do not reach.

What comes back must be what went in, and every core must produce the same bytes from the same data: a core's digest is
compared with that of the majority, so a fault that is consistent on one core shows too. What was wrong is done again
there and on two other cores. On a node with GPUs, whose cores no SKU file counts, only those that were wrong are named.
"""

from __future__ import annotations

import bz2
import collections
import functools
import hashlib
import lzma
import random
import zlib
from typing import Any, Callable

from muster_node.hardware.seam import Device, Worker
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.common import MIB, seed_of
from muster_node.workloads.rerun import DOC as RERUN_DOC
from muster_node.workloads.rerun import Rerun, peers_of, report_reruns
from muster_node.workloads.vote import dissenters

CODECS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "zlib": (lambda data: zlib.compress(data, 6), zlib.decompress),
    "bz2": (lambda data: bz2.compress(data, 1), bz2.decompress),
    "lzma": (lambda data: lzma.compress(data, preset=0), lzma.decompress),
}
HASH = "sha256"
Trip = Callable[[Worker], "dict[str, tuple[bool, str]]"]
_RERUNS = 3
_PLACES = 8  # cores and codecs whose round is repeated: where many more are wrong, none of them is the cause


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
        "round_trip_mismatches": Metric("count", "rounds in which a core lost data or differed from the other cores"),
        "round_trip_cores": Metric("count", "logical CPUs that made round trips", on="node"),
        "round_trip_rerun": Metric("count", RERUN_DOC),
    }

    def run(self, context: Context) -> None:
        """Test all logical CPUs together, round by round, until rounds and seconds are reached."""
        clock, devices = context.hardware.clock, context.hardware.devices("cpu")
        if not devices:
            context.emit("round_trip_cores", "node", note="this machine offers no CPU to run on")
            return
        wrong = {(device.id, codec): 0 for device in devices for codec in (*CODECS, HASH)}
        notes: dict[tuple[str, str], str] = {}
        first: dict[tuple[str, str], tuple[Trip, str]] = {}
        end, rounds = clock.now() + context.params["seconds"], 0
        while rounds < context.params["rounds"] or clock.now() < end:
            context.progress(f"round trips on all cores, round {rounds + 1}")
            trip = functools.partial(_trip, seed_of(context.seed, rounds), int(context.params["mib"] * MIB))
            results = context.hardware.at_once(devices, trip)
            for codec in (*CODECS, HASH):
                given = [result[codec] for result in results]
                for index, problem in compare(given).items():
                    place = device, _ = (devices[index].id, codec)
                    note, labels = f"round {rounds + 1}: {problem}", {"codec": codec}
                    if not wrong[place]:
                        context.emit("round_trip_mismatches", device, value=1, labels=labels, note=note, so_far=True)
                    wrong[place] += 1
                    notes.setdefault(place, note)
                    first.setdefault(place, (trip, _of_most([digest for _, digest in given])))
            rounds += 1
        alone = "" if len(devices) > 1 else "there is one CPU, and no other to compare it with"
        context.emit("round_trip_cores", "node", value=len(devices), samples=rounds, note=alone)
        named = {place: count for place, count in wrong.items() if count or not context.hardware.devices("gpu")}
        for (device, codec), count in named.items():
            note = notes.get((device, codec), "")
            context.emit(
                "round_trip_mismatches", device, value=count, labels={"codec": codec}, samples=rounds, note=note
            )
        _run_again(context, devices, first)


def _run_again(context: Context, devices: list[Device], first: dict[tuple[str, str], tuple[Trip, str]]) -> None:
    """Repeats the first wrong round of each core and codec there, and on two cores without any.

    ``first``: its work, and the digest that it must have.
    """
    suspects = {device for device, _ in first}
    for (device, codec), (trip, right) in list(first.items())[:_PLACES]:
        own = next(each for each in devices if each.id == device)
        on: dict[str, Rerun] = {}
        for other in [own, *peers_of(device, suspects, devices)]:
            on[other.id] = Rerun()
            for _ in range(_RERUNS if other is own else 1):
                (result,) = context.hardware.at_once([other], trip)
                on[other.id].add(result[codec] != (True, right))
        report_reruns(context, "round_trip_rerun", device, {"codec": codec}, on)


def _of_most(digests: list[str]) -> str:
    """The digest of more than half, "" where there is none."""
    digest, count = collections.Counter(digests).most_common(1)[0]
    return digest if 2 * count > len(digests) else ""


def compare(results: list[tuple[bool, str]]) -> dict[int, str]:
    """Which of the cores' (round trip kept the data, digest) are wrong, and how: index → reason."""
    problems = {index: "the data did not come back" for index, (kept, _) in enumerate(results) if not kept}
    for index, reason in dissenters([digest for _, digest in results], "cores").items():
        problems.setdefault(index, reason)
    return problems


def _trip(seed: int, size: int, worker: Worker) -> dict[str, tuple[bool, str]]:
    """One round on one core: codec → (round trip kept the data, digest of what the core produced)."""
    data = make_data(seed, size)
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
