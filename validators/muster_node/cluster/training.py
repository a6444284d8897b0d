"""The bitwise half of the training test: the same batch on every device, twice, before anything is exchanged."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

from muster_node.cluster.digest import digest
from muster_node.hardware.seam import Device, Hardware
from muster_node.workloads.common import seed_of
from muster_node.workloads.transformer import Shape, Transformer

Part = tuple[str, str]
"""Kind ("activations", "gradients") and layer."""


class Marks(Protocol):
    """Where progress is reported."""

    def mark(self, activity: str) -> None:
        """Reports progress."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One micro-batch on one device: digest by (kind, layer), and what the second run gave otherwise."""

    step: int
    digests: dict[Part, str]
    differing: list[Part]


def same_batch(torch: Any, model: Transformer, seed: int, step: int, group: Marks) -> Trial:
    """Runs the step's micro-batch twice from the same weights, before any all-reduce: a mismatch is this device's own.

    Every rank and device has the same batch, so every digest has to be the same everywhere, and twice here.
    """
    batch = model.batch(seed_of(seed, "same", step), model.shape.batch * model.shape.seq)
    runs = []
    for run in (1, 2):
        group.mark(f"step {step}, run {run} on {model.compute.device.id}")
        seen: dict[Part, list[Any]] = {}
        model.tape = functools.partial(_remember, seen)
        model.gradients(batch)
        runs.append({part: digest(torch, tensors) for part, tensors in seen.items()})
    model.tape = lambda kind, layer, tensor: None  # what it has seen is let go
    return Trial(step, runs[0], [part for part in runs[0] if runs[0][part] != runs[1][part]])


def _remember(seen: dict[Part, list[Any]], kind: str, layer: str, tensor: Any) -> None:
    seen.setdefault((kind, layer), []).append(tensor)


def replica(torch: Any, hardware: Hardware, device: Device, shape: Shape, dtype: str, seed: int) -> Transformer:
    """The model of the bitwise test on one device. On a CPU the calling thread is pinned to it."""
    return Transformer(torch, hardware.compute(device), shape, dtype, seed_of(seed, "weights"))
