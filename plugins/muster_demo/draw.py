"""Which simulated node gets which fault: drawn from the seed alone; only the scoring reads it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random

NODES = 7
GPUS_PER_NODE = 8
FAULT_KINDS = ("missing_gpu", "sdc", "throttle", "slow_gemm")
"""Kinds of ``create_machine``: a missing GPU, one that corrupts results, one that throttles, one at 80 % rate."""


@dataclasses.dataclass(frozen=True)
class Planted:
    """One fault: its kind, the node it is in and the slot of the GPU."""

    node: str
    gpu: int
    kind: str

    @property
    def device(self) -> str:
        """The GPU as measurements name it."""
        return f"gpu{self.gpu}"


def node_names() -> tuple[str, ...]:
    """The simulated nodes."""
    return tuple(f"sim-h100-{number}" for number in range(1, NODES + 1))


def draw_faults(seed: int) -> tuple[Planted, ...]:
    """One fault of each kind, each in a node of its own; another seed moves them."""
    dice = random.Random(f"muster demo fleet {seed}")
    nodes = dice.sample(node_names(), len(FAULT_KINDS))
    return tuple(
        Planted(node, dice.randrange(GPUS_PER_NODE), kind) for node, kind in zip(nodes, FAULT_KINDS, strict=True)
    )


def save_answers(path: pathlib.Path, seed: int, faults: tuple[Planted, ...]) -> None:
    """Write the planted faults for the scoring."""
    path.write_text(json.dumps({"seed": seed, "faults": [dataclasses.asdict(fault) for fault in faults]}, indent=1))
    path.chmod(0o600)


def load_answers(path: pathlib.Path) -> tuple[Planted, ...]:
    """The planted faults."""
    return tuple(Planted(**fault) for fault in json.loads(path.read_text())["faults"])
