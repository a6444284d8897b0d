"""What the integrity benchmark puts its faults before: each detector's probe, and where the fault hits."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muster_node.cluster.collectives.exchange import OPS
from muster_node.hardware.seam import Hardware
from muster_node.probe import Probe
from muster_node.probes.collectives import Collectives
from muster_node.probes.exact_gemm import ExactGemm
from muster_node.probes.memory_pattern import MemoryPattern
from muster_node.probes.transfers import Transfers
from muster_node.workloads.common import best_devices
from muster_node.workloads.patterns import PATTERNS
from muster_simulator import create_machine, open_simulated
from tests.support.injector import Injector, OneDevice, WithPeers

MEMORY, BLOCK_MOVE = "memory", "block_move"
HOST_COPY, PEER_COPY = "host_copy", "peer_copy"
COLLECTIVE = "collective"
ROUNDS = 4
TRIAL_SHAPES = {"cpu": [48, 40, 64], "gpu": [256, 512, 1024]}
WRITTEN = tuple(pattern for pattern in PATTERNS if pattern != BLOCK_MOVE)
_MEMORY_GIB = 1 / 64
_MOVES = 4  # the least that so little memory is moved in
_COPIES = {"mib": 1, "peer_mib": 1, "repeats": 1}
_HOST_COPIES = 16  # one each way, and one each way at once; alone and with all GPUs, each after a warm-up
_PEER_COPIES = 2  # from the first peer, the warm-up among them
_EXCHANGES = 3  # two of them to warm up
_EXCHANGED_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Detector:
    """A probe with its parameters, and where a fault hits: one of the first ``among`` results of ``operation``."""

    probe: type[Probe]
    params: dict[str, Any]
    operation: str
    among: int


def detector_of(name: str, machine: Hardware, seed: int) -> Detector:
    """The detector of this name (a number format is that of its products), as short as a trial may be."""
    if name == BLOCK_MOVE:
        return Detector(MemoryPattern, _memory(BLOCK_MOVE), "copy", _MOVES)
    if name == MEMORY:
        # Memory is damaged between being written and being read for the first time.
        return Detector(MemoryPattern, _memory(WRITTEN[seed % len(WRITTEN)]), "touch", 1)
    if name == HOST_COPY:
        return Detector(Transfers, _COPIES, "transfer", _HOST_COPIES)
    if name == PEER_COPY:
        return Detector(Transfers, _COPIES, "peer", _PEER_COPIES)
    if name == COLLECTIVE:
        exchanged = {"sizes": [_EXCHANGED_BYTES], "repeats": 1, "ranks": 2, "ops": [OPS[seed % len(OPS)]]}
        return Detector(Collectives, exchanged, "collective", _EXCHANGES)
    shape = TRIAL_SHAPES[best_devices(machine)[0].kind]
    products = {"dtypes": [name], "shapes": [shape], "rounds": ROUNDS, "modes": ["alone"], "reruns": 2}
    return Detector(ExactGemm, products, "matmul", ROUNDS)


def _memory(pattern: str) -> dict[str, Any]:
    return {"max_gib": _MEMORY_GIB, "patterns": [pattern], "walk": 1, "reruns": 1}


@contextlib.contextmanager
def seen_by(name: str, machine: Hardware, injector: Injector | None) -> Iterator[Hardware]:
    """The machine as the detector of this name is to see it."""
    if name == COLLECTIVE:
        with injector.exchanges() if injector else contextlib.nullcontext():
            yield machine
    else:
        yield (WithPeers if name == PEER_COPY else OneDevice)(machine, injector)


def copies_of(machine: Hardware) -> list[str]:
    """The copies that can be made on a machine: none without a GPU, and to peers only if there are any."""
    return [HOST_COPY, PEER_COPY][: len(machine.devices("gpu"))]


@contextlib.contextmanager
def simulated_gpus(seed: int) -> Iterator[Hardware]:
    """A healthy simulated node, for what needs a GPU that this machine does not have."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        create_machine(Path(folder) / "node", seed=seed)
        yield open_simulated(Path(folder) / "node")
