"""The bitwise half of the training test: the same batch on every device, twice, before anything is exchanged."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from muster_node.hardware.seam import Device, Hardware
from muster_node.workloads.common import seed_of
from muster_node.workloads.digest import combined, digest
from muster_node.workloads.models.transformer import Shape, Transformer

Part = tuple[str, str]
"""Kind ("activations", "gradients") and layer."""

STEP_ROWS = 8_000
"""Rows of a node's result that digests of steps may take: 8,000 of 230 bytes are 1.8 of the 5 MiB that it holds."""
PART_ROWS = 4_096
"""Rows of a node's result that the digests of one step's parts may take, twice: before the load and after it."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One micro-batch on one device: digest by (kind, layer), and the parts in which the second run differed."""

    step: int
    digests: dict[Part, str]
    differing: list[Part]


def same_batch(torch: Any, model: Transformer, seed: int, step: int, mark: Callable[[str], None]) -> Trial:
    """Runs the step's micro-batch twice from the same weights, before any all-reduce: a mismatch is this device's own.

    Every rank and device has the same batch, so every digest has to be the same everywhere, and twice here.
    """
    batch = model.batch(seed_of(seed, "same", step), model.shape.batch * model.shape.seq)
    runs = []
    for run in (1, 2):
        mark(f"step {step}, run {run} on {model.compute.device.id}")
        seen: dict[Part, list[Any]] = {}
        model.tape = functools.partial(_remember, seen)
        model.gradients(batch)
        runs.append({part: digest(torch, tensors) for part, tensors in seen.items()})
    model.tape = lambda kind, layer, tensor: None  # what it has seen is let go
    return Trial(step, runs[0], [part for part in runs[0] if runs[0][part] != runs[1][part]])


def spans_of(steps: int, devices: int) -> list[range]:
    """The steps that each row of a device's digests stands for, where the largest node of the block has ``devices``.

    The first step is alone. All nodes have to divide them alike, since their digests are compared.

    >>> spans_of(3, 8), spans_of(3, 6_000)
    ([range(0, 1), range(1, 2), range(2, 3)], [range(0, 1), range(1, 3)])
    """
    rows = max(2, STEP_ROWS // devices)
    size = max(1, -(-(steps - 1) // (rows - 1)))
    return [range(1), *(range(at, min(at + size, steps)) for at in range(1, steps, size))]


def rows_of(label: str, trials: Sequence[Trial], *, each_part: bool) -> Iterator[tuple[dict[str, str], str]]:
    """(labels, digest) of the rows for these trials: one for all of them, or one for each part of the only one."""
    if each_part:
        for (kind, layer), text in trials[0].digests.items():
            yield {"step": label, "kind": kind, "layer": layer}, text
    else:
        yield {"step": label}, combined(text for trial in trials for _, text in sorted(trial.digests.items()))


def _remember(seen: dict[Part, list[Any]], kind: str, layer: str, tensor: Any) -> None:
    seen.setdefault((kind, layer), []).append(tensor)


def replica(torch: Any, hardware: Hardware, device: Device, shape: Shape, dtype: str, seed: int) -> Transformer:
    """The model of the bitwise test on one device. On a CPU the calling thread is pinned to it."""
    return Transformer(torch, hardware.compute(device), shape, dtype, seed_of(seed, "weights"))
